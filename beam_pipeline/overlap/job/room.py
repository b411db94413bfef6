"""Whether there is room for what a run will write, before it writes any of it.

UnitSize of all work units → how many details each work unit may write
"""

from collections.abc import Iterator, Sequence

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.job.gathering import Sizes
from beam_pipeline.overlap.job.preparing import Job
from beam_pipeline.overlap.results.counts import UnitSize, add_sizes
from beam_pipeline.overlap.results.details import COMPACT, DetailsSize, quotas
from beam_pipeline.report.tables import bytes_text
from beam_pipeline.storage.files import free_bytes

# Of overlap_matches and overlap_instances, before compression.
_MATCH_BYTES, _PLACE_BYTES, _PAIR_BYTES = 52, 8, 32
_COPIES = 3  # of a work unit, of a group of training files, of the output


def set_quotas(_: bytes, job: Job, sizes: Sizes) -> Iterator[tuple[str, int | None]]:
    """Yields how many details each work unit may write, by its name.

    Raises:
      ProbelineError: as `check_room`.
    """
    ordered = sorted(sizes, key=lambda sized: sized[0].order)
    check_room([size for _, size in ordered], job)
    names = [scanned.name for scanned, _ in ordered]
    num_kept = [size.details.num_kept for _, size in ordered]
    yield from zip(names, quotas(num_kept, job.details.max_total), strict=True)


def matches_bytes(matches: UnitSize) -> int:
    """Returns at most how many bytes the files of matches take, those that are joined included."""
    num_bytes = matches.num_matches * _MATCH_BYTES + matches.num_places * _PLACE_BYTES
    return _COPIES * (num_bytes + matches.num_pairs * _PAIR_BYTES)


def check_room(sizes: Sequence[UnitSize], job: Job) -> None:
    """Checks that the results, before compression, are no larger than allowed and than the disk.

    Args:
      sizes: of each work unit, in order.

    Raises:
      ProbelineError: they are.
    """
    config, matches = job.config, add_sizes(sizes)
    of_matches = matches_bytes(matches)
    num_records, num_bytes = _details([size.details for size in sizes], job.details.max_total)
    limits = {f"--max_details_gb={config.max_details_gb}": config.max_details_gb * 10**9}
    if (free := free_bytes(config.output_path)) is not None:
        name = f"the {bytes_text(free)} free there"
        if of_matches > free:
            raise ProbelineError(
                f"overlap_matches in {config.output_path} would have {matches.num_matches:,} "
                f"records, which with their temporary copies take {bytes_text(of_matches)} before "
                f"compression, more than {name}; the scan is kept: make room, then "
                f"{_going_on(job)}"
            )
        limits[f"{name} less {bytes_text(of_matches)} for overlap_matches"] = free - of_matches
    name, limit = min(limits.items(), key=lambda item: item[1])
    if num_bytes > limit:
        ways = {
            "max_details_per_pair": 1,
            "max_details": max(1, num_records * limit // (2 * num_bytes)),
            "max_details_gb": -(-num_bytes // 10**9),
        }
        pair, count, size = (job.option(name, value) for name, value in ways.items())
        raise ProbelineError(
            f"overlap_details in {config.output_path} would have {num_records:,} records of "
            f"{bytes_text(num_bytes)} before compression, more than {name}; the scan is kept: "
            f"choose {pair}, {count} or, with room for it, {size}, or "
            f"{_going_on(job, 'none' if config.details == COMPACT else COMPACT)}"
        )


def _details(sizes: Sequence[DetailsSize], max_details: int | None) -> tuple[int, int]:
    """Returns the number of details that may be written, and at most how many bytes they have."""
    num_records = num_bytes = 0
    may_write = quotas([size.num_kept for size in sizes], max_details)
    for size, quota in zip(sizes, may_write, strict=True):
        count = size.num_kept if quota is None else min(quota, size.num_kept)
        num_records += count
        num_bytes += min(size.num_kept_bytes, count * size.max_bytes) + size.num_text_bytes
    return num_records, num_bytes


def _going_on(job: Job, details: str | None = None) -> str:
    """Returns how to go on from the scan, for a shell or for Python."""
    options = {"skip_existing": True} | ({"details": details} if details else {})
    given = [job.option(name, value) for name, value in options.items()]
    if job.command:
        return f"go on with {' '.join([job.command, *given])}"
    return f"run it again with {' and '.join(given)}"
