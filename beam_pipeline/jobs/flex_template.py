"""Flex Templates: the parameters that Dataflow's launcher passes become flags of a job's program.

The launcher runs `python main.py --NAME=VALUE …` in the template's image, with each name once, and
starts the job that the program writes to --template_location. Several paths are thus passed in one
value, and switches as true or false. By default the job runs on Dataflow, with this image for its
workers.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.beam_options import beam_parser

# The name of this image, set by the Dockerfile.
IMAGE_VARIABLE = "PROBELINE_IMAGE"
# A comma is part of a name unless another path follows it, or NAME=PATH.
_NEXT_PATH = re.compile(r",\s*(?=(?:[^,/=]+=)?[a-z][a-z0-9]*://)")


def launch(
    main: Callable[[Sequence[str]], int], parser: OneLineParser, parameters: Sequence[str]
) -> int:
    """Runs a program with the launcher's parameters as flags; returns its exit code."""
    image = os.environ.get(IMAGE_VARIABLE)
    defaults = ["--runner=DataflowRunner", *([f"--sdk_container_image={image}"] if image else [])]
    return run_command(
        parameters, lambda given: main([*defaults, *flags_of(given, parser)]), "stopped"
    )


def flags_of(parameters: Iterable[str], parser: OneLineParser) -> list[str]:
    """Returns the flags of a template's parameters; UsageError for a switch not true or false.

    Example: `["--input=gs://a/x,gs://b/y", "--overwrite=true"]` becomes
    `["--input=gs://a/x", "--input=gs://b/y", "--overwrite"]`.
    """
    parsers = parser, beam_parser()
    known = {
        name: action for each in parsers for action in each.flags for name in action.option_strings
    }
    repeatable = {name for each in parsers for name in each.repeatable}
    flags = []
    for parameter in parameters:
        name, has_value, value = parameter.partition("=")
        action = known.get(name)
        if action is None:
            # The launcher may add flags that this version of Beam does not know. It has already
            # checked a user's parameters against metadata.json.
            print(
                f"warning: {name} is neither a flag of this job nor of Beam: ignored",
                file=sys.stderr,
            )
        elif action.nargs == 0 and has_value:
            if value.lower() == "true":
                flags.append(name)
            elif value.lower() == "false":  # only Beam has switches with an opposite
                flags += [
                    other
                    for other, switch in known.items()
                    if switch.dest == action.dest and switch.const != action.const
                ]
            else:
                raise UsageError(f"{name}={value}: give true or false")
        elif name in repeatable and has_value:
            flags += [f"{name}={path}" for path in _NEXT_PATH.split(value)]
        else:
            flags.append(parameter)
    return flags
