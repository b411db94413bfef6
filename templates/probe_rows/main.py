"""What the launcher of the Flex Template runs: python -m beam_pipeline.main with its parameters."""

import sys

from beam_pipeline import flex_template, options
from beam_pipeline.main import main

if __name__ == "__main__":
    sys.exit(flex_template.launch(main, options.make_parser(), sys.argv[1:]))
