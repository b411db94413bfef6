"""Makes a dataset of probe rows from ping measurements.

On a laptop:
  python -m beam_pipeline.main --input 'data/*.parquet' --output rows

On Dataflow:
  python -m beam_pipeline.main --input 'gs://bucket/data/*.parquet' --output gs://bucket/rows \\
    --runner=DataflowRunner --project=P --region=R --temp_location=gs://bucket/temp

Exit code 0: the dataset is there. 1: the run failed. 2: the command cannot be run as given.
"""

import contextlib
import logging
import signal
import sys
import time
import warnings
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import inputs, output_folder, probe_rows, progress
from beam_pipeline.errors import ProbelineError, UsageError, user_message
from beam_pipeline.files import is_local
from beam_pipeline.manifest import Dataset, open_dataset
from beam_pipeline.options import Options, parse
from beam_pipeline.summary import print_summary

_MAX_FILES_IN_LAUNCHER = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        options, beam_options = parse(arguments)
        with contextlib.nullcontext() if debug else _quiet():
            started = time.monotonic()
            dataset = run(options, beam_options)
        print_summary(dataset, time.monotonic() - started)
    except (KeyboardInterrupt, Exception) as error:
        if "KeyboardInterrupt" in repr(error):  # Beam wraps what stops a worker
            print("stopped; the output holds no finished dataset", file=sys.stderr)
            return 130
        if debug:
            raise
        last_line = (str(error).strip().splitlines() or ["no message"])[-1]
        message = user_message(error) or (
            f"unexpected {type(error).__name__}: {last_line}; --debug shows where"
        )
        print(f"error: {message}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def run(options: Options, beam_options: PipelineOptions) -> Dataset:
    """Runs the job to its end and returns the finished dataset.

    Raises:
      ProbelineError: the run failed; nothing that looks finished is left.
    """
    matched = inputs.match_files(options.input)
    read_options, dataset_options = options.read_options(), options.dataset_options()
    files: list = matched
    if len(matched) <= _MAX_FILES_IN_LAUNCHER:
        files = [inputs.inspect(*file, read_options) for file in matched]
    with output_folder.taken(options.output, options.overwrite) as run_folder:
        pipeline = beam.Pipeline(options=beam_options)
        probe_rows.build(
            pipeline,
            files,
            options.output,
            run_folder,
            read_options,
            dataset_options,
            options.inline_bytes_for(beam_options),
            skip_bad_files=options.on_bad_file == "dead_letter",
        )
        with _progress(files, run_folder):
            pipeline.run().wait_until_finish()
    try:
        return open_dataset(options.output)
    except ProbelineError as error:
        raise ProbelineError(f"the runner ended without an error, yet {error}") from error


def _progress(files: list, run_folder: str) -> contextlib.AbstractContextManager[None]:
    if not is_local(run_folder):
        return contextlib.nullcontext()  # the runner's own page shows it
    known = files if files and isinstance(files[0], inputs.InputFile) else []
    units = inputs.plan_units(known)
    return progress.watched(run_folder, units, sys.stderr)


@contextlib.contextmanager
def _quiet():
    """Keeps Beam's log and warnings off the terminal: its errors come back as exceptions."""
    previous = logging.root.manager.disable
    # This one speaks up when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def _on_sigterm(*_: object) -> None:
    raise KeyboardInterrupt  # so that what the run left is removed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(main())
