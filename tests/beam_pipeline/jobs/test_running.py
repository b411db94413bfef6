"""What the in-memory runner is told before a pipeline runs."""

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import bundle_processor

from beam_pipeline.jobs import running
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER


def test_no_bundle_waits_long_for_the_thread_that_samples_its_state(monkeypatch):
    """Beam joins that thread when a bundle ends, and it may just have gone to sleep."""
    periods = []
    make = bundle_processor.BundleProcessor.__init__

    def seen(self, *args, **kwargs):
        make(self, *args, **kwargs)
        periods.append(self.state_sampler.sampling_period_ms)

    monkeypatch.setattr(bundle_processor.BundleProcessor, "__init__", seen)
    with running.new_pipeline(PipelineOptions(runner=IN_MEMORY_RUNNER)) as pipeline:
        _ = pipeline | beam.Create([1]) | beam.Reshuffle()
    assert periods
    assert max(periods) <= 10
