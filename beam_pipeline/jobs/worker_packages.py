"""The packages of Dataflow's workers: those of an image, or those of a clone, installed with pip.

setup.py allows ranges, and autoscaling starts workers for hours. A dataset has the same bytes with
the same libraries only, so workers of a clone first install the versions of `PINS`. Beam stages
such a file as it does --requirements_file; its workers install it before the package.
"""

import os
import sys

from apache_beam.options import pipeline_options as beams
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.errors import UsageError

PINS = "templates/worker_requirements.txt"  # beside setup.py; written by make lock


def prepare(options: PipelineOptions) -> None:
    """Has workers get this package, and in a clone the versions of its dependencies.

    Workers that lack it would say so only after minutes of starting, those that wait for pip never.

    Raises:
      UsageError: they would not get it.
    """
    setup = options.view_as(beams.SetupOptions)
    worker = options.view_as(beams.WorkerOptions)
    image = worker.sdk_container_image
    if not (setup.setup_file or setup.extra_packages or setup.requirements_file or image):
        raise UsageError(
            "--runner=DataflowRunner: the workers would not have Probeline; run this in a clone "
            "with --setup_file=./setup.py, or name an image that holds it with "
            "--sdk_container_image"
        )
    if setup.setup_file and not os.path.isfile(setup.setup_file):
        raise UsageError(
            f"--setup_file={setup.setup_file}: there is no such file; run this in a clone, where "
            "it is ./setup.py"
        )
    if setup.setup_file and not (setup.requirements_file or image):
        pins = os.path.join(os.path.dirname(setup.setup_file), PINS)
        if os.path.isfile(pins):
            setup.requirements_file = pins
            # Otherwise Beam would download all of them here and upload them with each job.
            setup.requirements_cache = setup.requirements_cache or "skip"
    if worker.use_public_ips is False and (setup.setup_file or setup.requirements_file):
        print(
            "warning: --no_use_public_ips: workers install packages with pip, which waits without "
            "end unless Cloud NAT serves their subnetwork; an image needs no pip: give "
            "--sdk_container_image and no --setup_file",
            file=sys.stderr,
        )
