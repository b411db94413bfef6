"""The check of --array_record_options. Nothing heavy is imported here."""

import subprocess
import sys

from beam_pipeline.errors import UsageError, one_line

# The options are parsed before the file is opened; nothing is written to /dev/null.
_OPEN_WRITER = """
import sys
from array_record.python.array_record_module import ArrayRecordWriter
try:
    ArrayRecordWriter("/dev/null", sys.argv[1]).close()
except (RuntimeError, ValueError) as error:
    sys.exit(str(error))
"""


def check_writer_options(options: str, default: str) -> None:
    """Raises UsageError if ArrayRecord does not understand --array_record_options."""
    if options == default:
        return
    # In a separate process: a compressing writer leaves a thread, and this process will be forked.
    command = [sys.executable, "-c", _OPEN_WRITER, options]
    opened = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if opened.returncode:
        raise UsageError(
            f"--array_record_options={options} is not understood by ArrayRecord: "
            f"{one_line(RuntimeError(opened.stderr))}; try {default}"
        )
