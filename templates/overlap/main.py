"""Entry point of the Flex Template: runs the overlap job with its parameters as flags."""

import sys

from beam_pipeline.jobs import flex_template
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import config

if __name__ == "__main__":
    sys.exit(flex_template.launch(main, config.make_parser(), sys.argv[1:]))
