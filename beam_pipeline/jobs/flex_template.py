"""Flex Templates: what Dataflow's launcher gives as parameters becomes flags of a job's program.

The launcher runs `python main.py --NAME=VALUE …` in the template's image, each name once, further
flags of Beam among them, and starts the job that the program has written to --template_location.
So several paths come in one value, and switches come as true or false. Unless told otherwise the
job is for Dataflow, and its workers run the image that this runs in.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.beam_options import beam_parser

# The image's own name, which it cannot know by itself: the Dockerfile sets it.
IMAGE_VARIABLE = "PROBELINE_IMAGE"
# A comma is part of a name unless another path follows it, or NAME=PATH.
_NEXT_PATH = re.compile(r",\s*(?=(?:[^,/=]+=)?[a-z][a-z0-9]*://)")


def launch(
    main: Callable[[Sequence[str]], int],
    parser: argparse.ArgumentParser,
    parameters: Sequence[str],
) -> int:
    """Runs a program with the launcher's parameters; returns its exit code.

    Args:
      main: the program; it takes its flags.
      parser: parses the flags of the program that are not Beam's.
    """
    image = os.environ.get(IMAGE_VARIABLE)
    defaults = ["--runner=DataflowRunner", *([f"--sdk_container_image={image}"] if image else [])]
    known = [*parser._actions, *beam_parser()._actions]
    try:
        flags = flags_of(parameters, known)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return main([*defaults, *flags])


def flags_of(parameters: Iterable[str], known: Sequence[argparse.Action]) -> list[str]:
    """Returns parameters as the flags that they mean.

    Raises:
      UsageError: a switch is neither true nor false.
    """
    by_name = {name: action for action in known for name in action.option_strings}
    flags = []
    for parameter in parameters:
        name, has_value, value = parameter.partition("=")
        action = by_name.get(name)
        if action is None:
            # The launcher may add what this version of Beam does not know; what a person gives
            # has been compared with metadata.json.
            print(f"warning: {name} is no flag of this job, nor of Beam: ignored", file=sys.stderr)
        elif action.nargs == 0 and has_value:
            flags += _switch(name, value, action, known)
        elif isinstance(action, argparse._AppendAction) and has_value:
            flags += [f"{name}={path}" for path in _NEXT_PATH.split(value)]
        else:
            flags.append(parameter)
    return flags


def _switch(
    name: str, value: str, action: argparse.Action, known: Sequence[argparse.Action]
) -> list[str]:
    """Returns the flag that sets what a switch with this value sets."""
    if value.lower() not in ("true", "false"):
        raise UsageError(f"{name}={value}: give true or false")
    if value.lower() == "true":
        return [name]
    return [
        other.option_strings[0]
        for other in known
        if other.dest == action.dest and other.nargs == 0 and other.const != action.const
    ]
