"""Does the work of a Dataflow job from what was staged: python dataflow_worker.py PIPELINE OPTIONS

PIPELINE is the staged pipeline.pb, OPTIONS a JSON file of the job's sdkPipelineOptions. It runs in
an environment that has Beam and the staged packages alone, and prints as JSON which steps' DoFns it
unpickled and where they came from. Two things differ from Dataflow: the container of each
environment is a process of this Python, where the staged packages are installed already, and Beam's
in-memory runner takes the place of the service. The rest of the pipeline is run as it was staged.
"""

import json
import sys
from pathlib import Path

from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_provision_api_pb2, beam_runner_api_pb2
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from google.protobuf import json_format, struct_pb2


def main(pipeline_path: str, options_path: str) -> None:
    """Unpickles every DoFn, then runs the pipeline."""
    pipeline = beam_runner_api_pb2.Pipeline.FromString(Path(pipeline_path).read_bytes())
    options = json.loads(Path(options_path).read_text())
    pickler.set_library(options["options"].get("pickle_library"))
    steps = unpickle_do_fns(pipeline)
    print(json.dumps({"steps": steps, "source": sys.modules["beam_pipeline"].__file__}), flush=True)

    command = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
    process = SubprocessSDKEnvironment.from_command_string(command).to_runner_api(None)  # type: ignore[arg-type]
    for environment in pipeline.components.environments.values():
        environment.urn, environment.payload = process.urn, process.payload
        del environment.dependencies[:]

    # As Go's protobuf writes whole numbers, which is what starts the workers on Dataflow.
    words = {
        name: str(int(value)) if isinstance(value, float) and value.is_integer() else value
        for name, value in options["options"].items()
    }
    given = json_format.ParseDict({"options": words}, struct_pb2.Struct())
    info = ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=given))
    runner = FnApiRunner(provision_info=info)
    runner.run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()


def unpickle_do_fns(pipeline: beam_runner_api_pb2.Pipeline) -> list[str]:
    """Unpickles every DoFn; returns the names of their steps."""
    steps = []
    for transform in pipeline.components.transforms.values():
        if transform.spec.urn == primitives.PAR_DO.urn:
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.do_fn.urn == python_urns.PICKLED_DOFN_INFO:  # others have no code of ours
                pickler.loads(payload.do_fn.payload)
                steps.append(transform.unique_name)
    return sorted(steps)


if __name__ == "__main__":
    main(*sys.argv[1:])
