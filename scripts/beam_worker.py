#!/usr/bin/env python
"""The command of --environment_type=PROCESS: runs a Beam worker with the `python` of PATH.

An engine starts it with the worker's name and the address of one service, which has all others.
"""

import argparse
import os

import grpc


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--id")
    parser.add_argument("--provision_endpoint")
    args, _ = parser.parse_known_args()
    os.environ["WORKER_ID"] = args.id  # Beam reads it when it is imported
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from apache_beam.runners.worker import sdk_worker_main
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor
    from google.protobuf import json_format, text_format

    channel = grpc.insecure_channel(args.provision_endpoint)
    service = beam_provision_api_pb2_grpc.ProvisionServiceStub(
        grpc.intercept_channel(channel, WorkerIdInterceptor())
    )
    info = service.GetProvisionInfo(beam_provision_api_pb2.GetProvisionInfoRequest()).info
    os.environ.update(
        CONTROL_API_SERVICE_DESCRIPTOR=text_format.MessageToString(info.control_endpoint),
        LOGGING_API_SERVICE_DESCRIPTOR=text_format.MessageToString(info.logging_endpoint),
        PIPELINE_OPTIONS=json_format.MessageToJson(info.pipeline_options),
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
    )
    sdk_worker_main.main([])


if __name__ == "__main__":
    main()
