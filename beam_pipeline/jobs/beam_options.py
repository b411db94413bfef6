"""Beam's own options, parsed from the flags that a job's parser leaves over.

A flag that neither the job nor Beam knows is an error that suggests the nearest one. Without a
runner, and with the DirectRunner, a job runs in memory.
"""

import argparse
import contextlib
import copy
import difflib
import io
import socket
import sys
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    ProfilingOptions,
    StandardOptions,
    TypeOptions,
)

from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError, one_line, printable
from beam_pipeline.machine import can_fork, num_cores

IN_MEMORY_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
PRISM_RUNNER = "PrismRunner"
_ANSWER_S, _READY_S = 10.0, 60.0  # for a connection to a job server, and for its first answer
# A spawned worker takes 1.5 CPU-seconds more than a forked one, a unit some 0.5: two cores gain
# nothing yet from this number of units, four do.
_MIN_SPAWNED_UNITS = 16
# Else Flink starts a Python for each stage. A dead worker is kept as long: an engine has to wait
# longer before it runs a failed task again.
_KEEP_WORKERS_MS = 2_000
# Runners with flags that Beam's Python side does not know; they check them.
RUNNERS_WITH_OWN_FLAGS = ("PortableRunner", "FlinkRunner", "SparkRunner")


class _Options(PipelineOptions):
    """Beam's options with cached views: Beam requests hundreds, 0.3 ms each."""

    def view_as(self, cls: type[Any]) -> Any:
        views = self.__dict__.setdefault("_views", {})  # Beam's own __setattr__ takes options only
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def parse_beam_options(argv: list[str], job_flags: Iterable[str]) -> PipelineOptions:
    """Returns Beam's options from the flags that are not the job's; UsageError for a bad flag."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            beam_options = PipelineOptions(argv)
            beam_options.get_all_options()
    except SystemExit as error:
        reason = complaint.getvalue().strip().splitlines()[-1:] or [""]
        raise UsageError(
            f"Beam does not take {' '.join(argv)}: {reason[0].partition('error: ')[2]}"
        ) from error
    beam_options = suited(beam_options)
    if not any(flag.startswith(("--direct_num_workers", "--direct-num-workers")) for flag in argv):
        beam_options.view_as(DirectOptions).direct_num_workers = 0  # in Beam, all cores
    if beam_options.view_as(StandardOptions).runner not in RUNNERS_WITH_OWN_FLAGS:
        _refuse_unknown(argv, job_flags)
    return beam_options


def suited(given: PipelineOptions) -> PipelineOptions:
    """Returns Beam's options with the jobs' runner settings; UsageError for --streaming."""
    beam_options = copy.deepcopy(given).view_as(_Options)
    standard = beam_options.view_as(StandardOptions)
    if standard.runner in (None, "DirectRunner"):
        # The DirectRunner of this Beam first tries to download Prism.
        standard.runner = IN_MEMORY_RUNNER
    if standard.runner == PRISM_RUNNER:
        # Prism 2.77 splits a slow bundle even between two elements of one key and runs both parts
        # at once: the key's state would be lost.
        beam_options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")
    if standard.runner in RUNNERS_WITH_OWN_FLAGS:
        portable = beam_options.view_as(PortableOptions)
        if portable.environment_cache_millis == 0:  # the default; a flag's value is a str
            portable.environment_cache_millis = str(_KEEP_WORKERS_MS)
    _refuse_unfit(beam_options)
    if standard.streaming:
        raise UsageError("--streaming: the input is bounded; leave it out")
    return beam_options


def in_memory_only(collection: beam.PCollection, transform: beam.PTransform) -> Any:
    """Applies a transform that helps the in-memory runner alone; elsewhere it is absent."""
    options = collection.pipeline.options
    runner = options.view_as(StandardOptions).runner if options else None
    return collection | transform if runner == IN_MEMORY_RUNNER else collection


def check_job_server(beam_options: PipelineOptions) -> None:
    """Raises UsageError if no job server answers at --job_endpoint; Beam tries for minutes."""
    runner = beam_options.view_as(StandardOptions).runner
    endpoint = beam_options.view_as(PortableOptions).job_endpoint
    if runner not in RUNNERS_WITH_OWN_FLAGS or endpoint == "embed":
        return
    if not endpoint:
        if runner == "PortableRunner":
            raise UsageError(
                "--runner=PortableRunner needs --job_endpoint: give HOST:PORT of a job server"
            )
        return  # Beam starts a job server
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"--job_endpoint={endpoint}: no job server is listening ({one_line(error)}): "
            "start one, or give its HOST:PORT"
        ) from error
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(_READY_S)
        except grpc.FutureTimeoutError as error:
            raise UsageError(
                f"--job_endpoint={endpoint}: what listens there is no job server, or does not "
                f"answer in {_READY_S:.0f} s: read its log, or give another HOST:PORT"
            ) from error


def use_cores(beam_options: PipelineOptions, at_most: int) -> None:
    """Gives the in-memory runner --direct_num_workers workers; 0 means all cores, up to `at_most`.

    They are processes where this process can fork, otherwise threads, which gain little. 0 then
    means one, or for a large job new processes, and a line on stderr says so. A single worker needs
    no server between it and the runner.
    """
    direct = beam_options.view_as(DirectOptions)
    is_local = beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    if not is_local or direct.direct_running_mode == "multi_threading":
        return
    has_processes, cores = can_fork(), min(num_cores(), at_most)
    if not has_processes and not direct.direct_num_workers and cores > 1:
        if has_processes := at_most >= _MIN_SPAWNED_UNITS:
            what = f"starts {cores} worker processes"
        else:
            cores, what = 1, "uses one core"
        print(f"This process cannot fork: the job {what}", file=sys.stderr)
    direct.direct_num_workers = max(1, direct.direct_num_workers or cores)
    if direct.direct_num_workers > 1 and direct.direct_running_mode == "in_memory":
        direct.direct_running_mode = "multi_processing" if has_processes else "multi_threading"


def _refuse_unfit(beam_options: PipelineOptions) -> None:
    """Raises UsageError for options that would make Beam fail partway through a job."""
    workers = beam_options.view_as(DirectOptions).direct_num_workers
    if workers < 0:
        raise UsageError(
            f"--direct_num_workers={workers}: give a number of workers, or 0 for all cores"
        )
    types = beam_options.view_as(TypeOptions)
    if types.runtime_type_check or types.type_check_strictness == "ALL_REQUIRED":
        raise UsageError(
            "--runtime_type_check and --type_check_strictness=ALL_REQUIRED: Probeline's elements "
            "fail Beam's type check; leave them out"
        )
    profiling = beam_options.view_as(ProfilingOptions)
    if (profiling.profile_cpu or profiling.profile_memory) and not profiling.profile_location:
        raise UsageError(
            "--profile_cpu and --profile_memory need --profile_location: give a folder for them"
        )
    if beam_options.view_as(StandardOptions).runner == "InteractiveRunner":
        raise UsageError("--runner=InteractiveRunner is for notebooks: leave it out")


def beam_parser() -> OneLineParser:
    """Returns a parser of all flags that Beam knows."""
    parser = OneLineParser("apache_beam", "Flags of Beam.", add_help=False)
    for kind in PipelineOptions.__subclasses__():
        if "_add_argparse_args" in kind.__dict__:
            try:
                kind._add_argparse_args(parser)  # type: ignore[attr-defined]
            except argparse.ArgumentError:
                continue  # two of Beam's classes share a flag
    return parser


def _refuse_unknown(argv: list[str], job_flags: Iterable[str]) -> None:
    """Raises UsageError for the first flag that Beam would ignore."""
    parser = beam_parser()
    _, unknown = parser.parse_known_args(argv)
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    if not flag.startswith("-"):
        raise UsageError(
            f"{printable(flag)} belongs to no flag: quote a pattern, as in --input "
            "'data/*.parquet', so that the shell does not expand it; a flag takes one value, "
            "several with commas"
        )
    ours = [f"--{name}" for name in job_flags]
    beams = [name for action in parser.flags for name in action.option_strings]
    near = difflib.get_close_matches(flag, ours + beams, n=1)
    cure = f"did you mean {near[0]}?" if near else "--help lists the flags"
    raise UsageError(f"{flag} is neither a flag of Probeline nor of Beam: {cure}")
