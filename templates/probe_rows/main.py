"""Entry point of the Flex Template: runs the probe rows job with its parameters as flags."""

import sys

from beam_pipeline.jobs import flex_template
from beam_pipeline.main import main
from beam_pipeline.probe_rows import options

if __name__ == "__main__":
    sys.exit(flex_template.launch(main, options.make_parser(), sys.argv[1:]))
