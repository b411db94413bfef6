# An image of all programs, for a CPU. For Dataflow and TPUs see templates/.
#
#   docker build --tag probeline .
#   docker run --rm --volume "$PWD:/data" probeline rows --input 'data/*.parquet' --output rows
#
# The tag of the base image can move: for reproducible builds write NAME@sha256:….
FROM python:3.12-slim-bookworm

# Fewer make a smaller image: --build-arg EXTRAS=beam,report
ARG EXTRAS=all

WORKDIR /probeline

# Packages first, so that changes of the code reuse this layer. All of them are wheels.
COPY setup.py pyproject.toml README.md LICENSE requirements.txt ./
COPY beam_pipeline/__init__.py beam_pipeline/
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --constraint requirements.txt ".[${EXTRAS}]" \
    && pip uninstall --yes --root-user-action=ignore probeline

COPY beam_pipeline beam_pipeline
COPY training training
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --no-deps . \
    && pip check \
    && rm -rf /probeline

# Where the folder with the data is mounted.
WORKDIR /data
ENTRYPOINT ["probeline"]
