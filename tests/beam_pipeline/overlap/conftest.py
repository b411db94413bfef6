"""A corpus for the job, and one whose result several test files read."""

from tests.support.overlap_jobs import corpus, finished

__all__ = ["corpus", "finished"]
