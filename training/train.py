"""Trains a transformer on probe rows with MaxText.

    python -m training.train tiny network_train_files=rows/train base_output_directory=runs \\
        run_name=first steps=200

The first argument is a config: tiny, 95m or 680m of training/configs, or a MaxText config file
(.yml). The others are key=value, with MaxText's keys or ours (docs/training_keys.md). The same
command continues from the last checkpoint, also on a different number of hosts.
"""

import logging
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import ProbelineError, machine_error, one_line

if TYPE_CHECKING:
    from training.maxtext.feed import Fed
    from training.maxtext.iterators import Connection
    from training.maxtext.run_config import Arguments

_STOPPED = "stopped; the same command continues from the last checkpoint"
_SIGTERM_CODE = 143  # the exit code that shells give a process ended by SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, 1 (failed), 2 (invalid arguments) or 143 (SIGTERM).

    A host that fails beside others ends this process at once. At its end JAX waits for the others,
    for minutes, and these wait for it in the next step.
    """
    code = 1
    try:
        code = run_command(argv, _run, _STOPPED)
        return code
    except Exception:
        if _num_hosts() > 1:
            traceback.print_exc()
        raise
    finally:
        if code not in (0, _SIGTERM_CODE) and _num_hosts() > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _num_hosts() -> int:
    """Returns how many processes train; 1 before JAX is initialised."""
    jax = sys.modules.get("jax")
    return jax.process_count() if jax and jax.distributed.is_initialized() else 1


def make_parser() -> OneLineParser:
    """Returns the parser of --help; the arguments themselves follow MaxText's rules."""
    parser = OneLineParser(
        "training.train",
        "Trains a transformer on probe rows with MaxText.",
        "tiny network_train_files=rows/train base_output_directory=runs run_name=first steps=200",
        "The same command continues the run. docs/training_keys.md lists our keys.",
    )
    parser.add_argument(
        "config", nargs="?", help="tiny, 95m or 680m, or a config file of MaxText (.yml)"
    )
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="MaxText's keys, and ours: network_..."
    )
    return parser


def _run(argv: Sequence[str]) -> int:
    if {"-h", "--help", "help", "--version"} & set(argv):
        make_parser().parse_args(["--version"] if "--version" in argv else ["--help"])
    return train(argv)


def train(argv: Sequence[str]) -> int:
    """Trains all stages of the curriculum; returns the exit code."""
    require_packages("training.train", "maxtext")
    _quiet_imports()
    from training.maxtext import iterators, run_config

    arguments = run_config.read(argv)
    if arguments.values["skip_jax_distributed_system"] and arguments.values["enable_checkpointing"]:
        _serve_preemption()
    config = run_config.build(arguments)
    iterators.check_config(config)
    with run_config.only_trainer(config):
        return _train(arguments, config)


def _train(arguments: "Arguments", config: Any) -> int:
    from training.maxtext import iterators, run_config
    from training.maxtext.feed import Fed

    stages, total, completed = iterators.stages(config), Fed(), 0
    if config.enable_checkpointing:
        completed = iterators.completed_steps(config.checkpoint_dir)
        iterators.check_checkpoint(config.checkpoint_dir, completed)
        if completed:
            run_config.check_model(arguments, config)
    run_config.record(arguments, config)
    connection = iterators.connect(config.network_rtt_weight)
    first = completed
    for stage in stages:
        if completed >= stage.end:
            continue
        begin = max(completed, stage.begin)
        if config.profiler and not run_config.has_profile(config, stage, begin):
            _report(
                f"steps {begin} to {stage.end} are not profiled: a profile begins "
                f"skip_first_n_steps_for_profiler={config.skip_first_n_steps_for_profiler} steps "
                "after the first"
            )
        overrides = run_config.overrides_of(config, stage, begin)
        try:
            _train_stage(arguments.argv(*overrides), connection)
        except Exception as error:
            if _is_of_restoring(error, connection):
                raise iterators.unreadable_checkpoint(config, completed, error) from error
            raise
        fed = sum((feed.total_of_hosts() for feed in connection.feeds), Fed())
        total += fed
        if len(stages) > 1:
            _report(f"trained on crops of {stage.crop_size}{_throughput(fed, begin)}")
        completed = iterators.completed_steps(config.checkpoint_dir)
        for feed in connection.feeds:
            if feed.failure:
                raise ProbelineError(str(feed.failure)) from feed.failure
        if any(feed.has_ended for feed in connection.feeds):
            _report(
                f"the data ended, after num_epoch={config.num_epoch}; the last checkpoint has "
                f"{completed} of {config.steps} steps{_throughput(total, first)}"
            )
            return 0
        if config.enable_checkpointing and completed < stage.end:
            _report(
                f"stopped with {completed} of {config.steps} steps; the same command continues"
                f"{_throughput(total, first)}"
            )
            return _SIGTERM_CODE
    kept = "enable_checkpointing=false, so nothing is kept"
    if config.enable_checkpointing:
        kept = f"checkpoints are in {config.checkpoint_dir}"
    _report(f"{config.steps} steps are done; {kept}{_throughput(total, first)}")
    return 0


def _quiet_imports() -> None:
    """Limits the logs of libraries other than MaxText to warnings."""
    from absl import logging as absl_logging

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    absl_logging.set_verbosity(absl_logging.INFO)
    absl_logging.use_absl_handler()
    absl_logging.get_absl_handler().addFilter(
        lambda record: (
            record.levelno >= logging.WARNING
            or "maxtext" in record.pathname
            or record.pathname.startswith(os.path.dirname(__file__))
        )
    )


def _serve_preemption() -> None:
    """Makes JAX catch SIGTERM, so that MaxText saves a checkpoint as it does on a pod."""
    import jax

    if jax.distributed.is_initialized():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)


def _train_stage(argv: list[str], connection: "Connection") -> None:
    """Runs MaxText on one stage, until its end or a SIGTERM."""
    connection.feeds.clear()
    try:
        _run_maxtext(argv)
    finally:
        # Other hosts may have ended, too: their parts of a checkpoint will not come.
        if sys.exception() is None or _num_hosts() == 1:
            connection.finish_checkpoints()
        for feed in connection.feeds:
            feed.close_report()


def _is_of_restoring(error: Exception, connection: "Connection") -> bool:
    """Returns whether Orbax failed before MaxText asked for a batch."""
    if isinstance(error, ProbelineError) or any(feed.total.seconds for feed in connection.feeds):
        return False
    return any("orbax" in line for line in traceback.format_exception(error))


def _run_maxtext(argv: list[str]) -> None:
    from maxtext.trainers.pre_train import train as maxtext_train

    try:
        maxtext_train.main(argv)
    except Exception as error:
        # Orbax and Grain wrap our iterator's errors.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ProbelineError):
            if known := machine_error(cause):
                raise known from error
            if "Gloo" in str(cause) and _num_hosts() > 1:
                raise ProbelineError(
                    "another host has ended, and says why; the same command on all hosts continues "
                    f"from the last checkpoint ({one_line(cause)[:200]})"
                ) from error
            if "RESOURCE_EXHAUSTED" in str(cause):
                raise ProbelineError(
                    f"the devices have too little memory: reduce per_device_batch_size or "
                    f"max_target_length ({one_line(cause)[:200]})"
                ) from error
            cause = cause.__cause__ or cause.__context__
        if cause is None or cause is error:
            raise
        raise cause from error


def _throughput(fed: "Fed", first_step: int) -> str:
    """Returns the throughput since `first_step`, for the end of a report line."""
    import jax

    from training.maxtext.feed import throughput_text

    if not fed.seconds:
        return ""
    return f"; from step {first_step}: {throughput_text(fed, jax.devices()[0].device_kind)}"


def _report(line: str) -> None:
    import jax

    if jax.process_index() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
