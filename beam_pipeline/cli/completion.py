"""Prints a script that completes commands and flags of `probeline` with the Tab key.

  eval "$(probeline completion bash)"    # in ~/.bashrc; in ~/.zshrc: zsh

The flags of a command are those of its --help, so that the script needs no package.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.cli.probeline import PROGRAMS

FOR_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
SCRIPT = """\
_probeline() {
  local current="${COMP_WORDS[COMP_CWORD]}" choices=""
  if [ "$COMP_CWORD" = 1 ]; then
    choices="COMMANDS"
  elif [ "${current#-}" != "$current" ]; then
    choices=$(probeline "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '^ +--[a-z0-9_]+')
  fi
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -o default -F _probeline probeline
"""


def make_parser() -> OneLineParser:
    """Returns the parser of the command line."""
    parser = OneLineParser(
        "beam_pipeline.cli.completion",
        "Print a script that completes commands and flags. For every new shell, put this line into "
        '~/.bashrc:\n\n  eval "$(probeline completion bash)"',
        "bash",
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that runs the script")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the script; returns the exit code."""
    return run_command(argv, _run, "stopped")


def _run(argv: Sequence[str]) -> None:
    for_zsh = FOR_ZSH if make_parser().parse_args(argv).shell == "zsh" else ""
    sys.stdout.write(for_zsh + SCRIPT.replace("COMMANDS", " ".join(PROGRAMS)))


if __name__ == "__main__":
    sys.exit(main())
