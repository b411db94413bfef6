"""Runs the overlap job, then the removal if requested."""

from collections.abc import Sequence

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from beam_pipeline.cli.flags import normalise_flags
from beam_pipeline.errors import UsageError, program, user_error
from beam_pipeline.jobs.beam_options import parse_beam_options, suited
from beam_pipeline.overlap.job import launch
from beam_pipeline.overlap.job.config import DeconConfig, flag_fields
from beam_pipeline.overlap.removal import job
from beam_pipeline.overlap.removal.options import RemovalOptions


def run(config: DeconConfig, beam_options: PipelineOptions) -> str | None:
    """Runs the job, then the removal; returns the path of the results.

    Returns None if the options ask for a template, as a Flex Template's launcher does.

    Raises:
      UsageError, ProbelineError: as `launch.run` and `job.remove`. A finished result is kept.
    """
    removal = _removal_of(config)
    if removal is not None:
        if beam_options.view_as(GoogleCloudOptions).template_location:
            raise UsageError(
                f"--remove={config.removal.remove} is a second job, which a template does not "
                f"start: run {program('remove', 'beam_pipeline.overlap.remove')} on its result"
            )
        job.check_output(removal, "remove_output")
    output = launch.run(config, beam_options)
    if output is not None and removal is not None:
        job.remove(removal, beam_options, "remove_output")
    return output


def _removal_of(config: DeconConfig) -> RemovalOptions | None:
    if not config.remove_output:
        return None
    return RemovalOptions(
        result_path=config.output_path,
        output_path=config.remove_output,
        removal=config.removal,
        overwrite=config.overwrite,
        skip_existing=config.skip_existing,
    )


def run_from_python(
    config: DeconConfig, beam_options: PipelineOptions | Sequence[str] | None
) -> str:
    """Runs the job with Beam's options or flags; returns the path of the output.

    Errors are those of `run`, also from workers.
    """
    if isinstance(beam_options, PipelineOptions):
        options = suited(beam_options)
    else:
        flags = normalise_flags(beam_options or ())
        options = parse_beam_options(flags, [item.name for item in flag_fields()])
    try:
        run(config, options)
    except Exception as error:
        # From a worker: Beam adds the location and may raise another type of exception.
        found = user_error(error)
        if found is None or str(found) == str(error):
            raise
        raise found from error
    return config.output_path
