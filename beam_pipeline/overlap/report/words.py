"""How a report writes numbers, on the page and in the picture."""

from beam_pipeline.overlap.report.figures import Hits


def share_text(share: float) -> str:
    """Returns a share as percent; what is not none or all does not look so."""
    if 0 < share < 0.0005:
        return "<0.1\u00a0%"
    if 0.9995 <= share < 1:
        return ">99.9\u00a0%"
    return f"{100 * share:.0f}\u00a0%" if share in (0, 1) else f"{100 * share:.1f}\u00a0%"


def hits_text(hits: Hits) -> str:
    """Returns hits as `12 of 3,400`."""
    return f"{hits.num_hit:,} of {hits.num_instances:,}"


def number_text(number: int) -> str:
    """Returns a number with separators."""
    return f"{number:,}"
