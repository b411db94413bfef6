"""Packaging of Probeline; Dataflow workers install it with --setup_file=./setup.py."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "beam_pipeline/__init__.py").read_text())[1]  # type: ignore[index]
# The release workflow refuses to run in a repository that is not this one.
REPOSITORY = "https://github.com/probeline/probeline"


def long_description() -> str:
    """Returns README.md with absolute links to this version, for pages outside the repository."""
    text = (ROOT / "README.md").read_text()
    for start, kind in ((r"(!\[[^]]*\]\()", "raw"), (r"((?<!!)\[[^]]*\]\()", "blob")):
        text = re.sub(rf"{start}(?!https?://|#)", rf"\1{REPOSITORY}/{kind}/v{VERSION}/", text)
    return text


# Each with its reason; the upper bound is the next version that may break it.
BASE = [  # to read, check and look at a dataset
    "array-record>=0.8.1,<0.9",  # the shards
    "google-crc32c>=1.5,<2",  # the checksum that GCS keeps of every object
    "msgspec>=0.20,<0.23",  # RIPE Atlas results; MessagePack with sorted keys
    "numba>=0.61.2,<0.69",  # the kernels; beam_pipeline.kernels changes its cache
    "numpy>=2,<3",
    "orjson>=3.10,<4",  # documents, the manifest
    "pyarrow>=18,<27",  # Parquet, the bytes of a row
    "rich>=13,<16",  # progress, tables
    # Used by the jobs alone. They are here because --setup_file installs no extra on a worker,
    # whose image has Beam.
    "cryptography>=41,<51",  # the AES of --anonymize
    "isal>=1.7,<2",  # gzip of documents, in a quarter of the time of zlib
]
BEAM = ["apache-beam>=2.77,<3"]  # the jobs
GCP = ["apache-beam[gcp]>=2.77,<3"]  # the jobs on Dataflow; gs:// everywhere
TRAINING = [  # batches for any trainer
    "absl-py>=2,<3",  # Grain's workers read its flags
    "google-cloud-storage>=2.19,<4",  # a dataset's manifest on gs://
    "grain>=0.2.18,<0.3",  # the datasets, their workers and checkpoints
]
# The same batches for PyTorch. 2.3 is the first version for both Python 3.12 and NumPy 2.
TORCH = [*TRAINING, "torch>=2.3,<3"]
# python -m training.train on a CPU. MaxText names no dependency of its own outside its extras for
# accelerators; the lines below it are what its imports want. On ARM Linux these need glibc 2.35
# (Ubuntu 22.04, Debian 12): tokamax requires xprof, whose only wheel for ARM Linux needs it.
MAXTEXT = [
    *TRAINING,
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
]
# The same on a GPU: JAX with the libraries of CUDA 12, which every driver from 525 on runs.
GPU = [*MAXTEXT, "jax[cuda12]>=0.11.1,<0.12"]
# The same on a TPU; not in one environment with gcp, see docs/tpu_pod.md. MaxText asks for a jax
# of its time or newer, the bound is that of MAXTEXT.
TPU = [*TRAINING, "maxtext[tpu]==0.2.5", "jax[tpu]>=0.11.1,<0.12"]
REPORT = [
    "jinja2>=3.1,<4",  # the pages of inspect and of the overlap job
    "matplotlib>=3.9,<4",  # pictures of datasets, batches, evaluations, overlap
]
# All that can share one environment: not GPU and TORCH, which are large, nor TPU.
ALL = [*GCP, *MAXTEXT, *REPORT]
NOTEBOOK = ["ipykernel>=6.29,<8", "nbclient>=0.10,<0.12"]  # runs examples/first_model.ipynb
DEV = [
    *NOTEBOOK,  # by a test
    "duckdb>=1.4,<3",  # a peer in benchmarks/
    "huggingface-hub>=1,<3",  # the reader of a data card's metadata
    "hypothesis>=6.100,<7",
    "jsonschema>=4.23,<5",  # manifests against their schema
    "markdown-it-py>=3,<5",  # pages as a repository's site shows them
    "mlcroissant>=1.1,<2",  # the reader of croissant.json
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
    "scikit-learn>=1.5,<2",  # the random forest of benchmarks.arena
    "yacryptopan>=1,<2",  # the oracle for --anonymize
]

setup(
    name="probeline",
    version=VERSION,
    description="Ping measurements in Parquet to probe rows in ArrayRecord, for transformers",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="Probeline developers",
    url=REPOSITORY,
    project_urls={
        "Documentation": f"{REPOSITORY}/blob/v{VERSION}/README.md",
        "Changes": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    license_expression="Apache-2.0",
    keywords=[
        *("ping", "RIPE Atlas", "network measurement", "Apache Beam", "Dataflow", "ArrayRecord"),
        *("Grain", "MaxText", "JAX", "transformer", "training data", "decontamination"),
    ],
    python_requires=">=3.12,<3.15",
    packages=find_packages(include=["beam_pipeline*", "training*"]),
    package_data={
        "beam_pipeline": ["*.pyi", "py.typed"],
        "beam_pipeline.inspect": ["page.*"],
        "beam_pipeline.overlap.report": ["page.*"],
        "beam_pipeline.report": ["*.jinja"],
        "training": ["*.pyi", "configs/*.yml", "py.typed"],
    },
    entry_points={"console_scripts": ["probeline = beam_pipeline.cli.probeline:main"]},
    install_requires=BASE,
    extras_require={
        "beam": BEAM,
        "gcp": GCP,
        "training": TRAINING,
        "torch": TORCH,
        "maxtext": MAXTEXT,
        "gpu": GPU,
        "tpu": TPU,
        "report": REPORT,
        "all": ALL,
        # make docs: the site of docs/. The theme says that it will be mended until May 2027.
        "docs": [
            "mkdocs-material>=9.7,<10",
            "mkdocstrings-python>=2,<3",  # the reference, from docstrings
            "pymdown-extensions>=11,<14",
        ],
        # examples/first_model.ipynb: to look at it, and to run it from a terminal.
        "examples": [*NOTEBOOK, "jupyterlab>=4.4,<5"],
        "dev": DEV,
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Networking :: Monitoring",
        "Typing :: Typed",
    ],
)
