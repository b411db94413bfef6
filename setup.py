"""Packaging of Probeline; Dataflow workers install it with --setup_file=./setup.py."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "beam_pipeline/__init__.py").read_text())[1]  # type: ignore[index]

setup(
    name="probeline",
    version=VERSION,
    description="Ping measurements in Parquet to probe rows in ArrayRecord, for transformers",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.12,<3.14",
    packages=find_packages(include=["beam_pipeline*", "training*"]),
    package_data={
        "beam_pipeline.inspect": ["page.*"],
        "beam_pipeline.overlap.report": ["page.*"],
        "training": ["configs/*.yml"],
    },
    # Each with its reason; the upper bound is the next version that may break it.
    install_requires=[
        "apache-beam>=2.77,<3",  # the pipeline
        "array-record>=0.8.1,<0.9",  # the shards
        "cryptography>=41,<51",  # the AES of --anonymize
        "google-crc32c>=1.5,<2",  # the checksum that GCS keeps of every object
        "isal>=1.7,<2",  # gzip of documents, in a quarter of the time of zlib
        "msgspec>=0.20,<0.23",  # MessagePack with sorted keys: the ids of records without one
        "numba>=0.68,<0.69",  # the kernels; its cache is mended in beam_pipeline.kernels
        "numpy>=2,<3",
        "orjson>=3.10,<4",  # RIPE Atlas results, documents, the manifest
        "pyarrow>=18,<27",  # Parquet, the bytes of a row
        "rich>=13,<16",  # progress, tables
    ],
    extras_require={
        "gcp": ["apache-beam[gcp]>=2.77,<3"],  # gs://, Dataflow
        "training": [
            "absl-py>=2,<3",  # Grain's workers read its flags
            "google-cloud-storage>=2.19,<4",  # a dataset's manifest on gs://
            "grain>=0.2.18,<0.3",  # the datasets, their workers and checkpoints
        ],
        "plots": ["matplotlib>=3.9,<4"],  # pictures of datasets, batches, evaluations, overlap
        "report": ["jinja2>=3.1,<4"],  # the pages of inspect and of the overlap job
        # make docs: the site of docs/. The theme says that it will be mended until May 2027.
        "docs": ["mkdocs-material>=9.7,<10", "pymdown-extensions>=11,<14"],
        # examples/first_model.ipynb: to look at it, and to run it from a terminal.
        "examples": ["ipykernel>=6.29,<8", "jupyterlab>=4.4,<5", "nbclient>=0.10,<0.12"],
        # python -m training.train on a CPU. MaxText names no dependency of its own outside its
        # extras for accelerators; the lines below it are what its imports want.
        "maxtext": [
            "maxtext==0.2.5",  # training.maxtext.iterators stands in for some of its functions
            "aqtp>=0.9,<1",
            "cloud-accelerator-diagnostics>=0.1.1,<1",
            "datasets>=4,<6",
            "drjax>=0.2,<1",
            "etils>=1.10,<2",  # paths on gs:// and local ones alike; ours, too
            "flax>=0.12.9,<0.13",
            "gcsfs>=2026.2",
            "jax>=0.11.1,<0.12",
            "jinja2>=3.1,<4",
            "ml-collections>=1.1,<2",
            "ml-goodput-measurement>=0.2.3,<1",
            "omegaconf>=2.3,<3",  # ours, too: key=value
            "optax>=0.2.6,<1",
            "orbax-checkpoint>=0.12,<0.13",
            "pathwaysutils>=0.1.1,<1",
            "pillow>=11,<13",
            "psutil>=6,<8",
            "pydantic>=2.10,<3",
            "pyyaml>=6,<7",  # ours: the record of a run
            "qwix>=0.1.8,<1",
            "sentencepiece>=0.2,<1",
            "sympy>=1.13,<2",
            "tensorboardx>=2.6,<3",
            "tiktoken>=0.9,<1",
            "tokamax>=0.0.17,<1",
            "transformers>=5,<6",
        ],
        # The same on a TPU; not in one environment with gcp, see docs/training.md. MaxText asks for
        # a jax of its time or newer, the bound is that of `maxtext` above.
        "tpu": ["maxtext[tpu]==0.2.5", "jax[tpu]>=0.11.1,<0.12"],
        "dev": [
            "duckdb>=1.4,<3",  # a peer in benchmarks/
            "hypothesis>=6.100,<7",
            "ipykernel>=6.29,<8",  # with nbclient: the notebook in examples/, run by a test
            "nbclient>=0.10,<0.12",
            "markdown-it-py>=3,<5",  # pages as a repository's site shows them
            # Pages in the Chromium of the system. It brings its driver, speaks over a pipe, and
            # tells of every request; Selenium needs a driver of the browser's own version.
            "playwright>=1.50,<2",
            "polars>=1.30,<3",  # a peer in benchmarks/
            "psutil>=6,<8",  # CPU and memory in benchmarks/ and in tests of memory
            "pyright==1.1.414",  # another version may find more
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "ripe.atlas.sagan>=2,<3",  # the oracle for RIPE Atlas results (GPL, tests only)
            "ruff==0.17.5",  # another version may format otherwise
            "yacryptopan>=1,<2",  # the oracle for --anonymize
        ],
    },
    classifiers=[
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering",
    ],
)
