# shellcheck shell=bash disable=SC2034
# All settings of the scripts in this folder, with their defaults. Write those that differ, at least
# the empty ones whose comment does not say what empty means, into your own file and pass it:
#   SETTINGS=run.sh templates/tpu/queued_resources.sh create

# --- project ------------------------------------------------------------------------------------

PROJECT=              # the project's id
ZONE=                 # a zone with the accelerator: gcloud compute tpus locations list
SERVICE_ACCOUNT=      # e-mail of the hosts' account, created by project.sh; empty: Compute Engine's default

# --- data and results, in the region of ZONE ----------------------------------------------------

DATASET=              # gs://bucket/rows: a dataset's folder, with train/ and test/
OUTPUT=               # gs://bucket/runs: checkpoints and TensorBoard go to RUN_NAME below it
RUN_NAME=             # the same name continues from the run's last checkpoint

# --- training -----------------------------------------------------------------------------------

MODEL=95m             # a config of training/configs: its name, or the path of a .yml in training/
TRAIN_ARGUMENTS=(     # further key=value of MaxText or of Probeline, see docs/training.md
  checkpoint_period=1000
  # network_train_tokens=4000000000 (95m itself says 2 billion)
  # per_device_batch_size=32 grain_worker_count=0 grain_num_threads=2
  # grain_visualization_dir=/tmp/pictures (on each host)
)
ENVIRONMENT=(         # variables for training, such as LIBTPU_INIT_ARGS=…
  DECOUPLE_GCLOUD=FALSE  # TRUE would keep TensorBoard's files on the host
)
MAX_RESTARTS=100      # restarts of a run that ends neither with success nor with wrong usage
RESTART_DELAY_S=30    # delay before a restart; not on GKE
STOP_TIMEOUT_S=300    # time for the last checkpoint when training is stopped

# --- slice --------------------------------------------------------------------------------------

NAME=probeline        # name of the slice, its request and the workload: a-z, 0-9 and -, 40 at most
ACCELERATOR_TYPE=v6e-16             # generation and chips (v4, v5p: cores)
RUNTIME_VERSION=v2-alpha-tpuv6e     # v5p: v2-alpha-tpuv5, v5e: v2-alpha-tpuv5-lite, v4: tpu-ubuntu2204-base
SPOT=true             # false: on demand, unless CREATE_FLAGS says otherwise
CREATE_FLAGS=()       # further flags of queued-resources create: --reserved, --network=…, --internal-ips, --data-disk=…
GCLOUD=(gcloud)       # (gcloud alpha) for --provisioning-model=flex-start and --tunnel-through-iap
SSH_FLAGS=()          # further flags of ssh and scp: --internal-ip, --tunnel-through-iap
POLL_S=30             # seconds between checks of the slice

# --- disks of a host ----------------------------------------------------------------------------

# The column cache takes 10 bytes per measurement (22 with IPv6) of a host's share of the data. The
# boot disk has 100 GB; /dev/shm/cache is memory, the fastest and the least durable.
CACHE_DIR=/mnt/disks/cache          # empty: no cache, rows are read again in every epoch
CACHE_DEVICE=         # a disk to mount there, formatted if blank: /dev/sdb; empty: the boot disk
GCSFUSE_DIR=          # mount point of the dataset's bucket; empty: read gs:// directly
GCSFUSE_FLAGS="--implicit-dirs --metadata-cache-ttl-secs=-1 --stat-cache-max-size-mb=-1 --type-cache-max-size-mb=-1 --kernel-list-cache-ttl-secs=-1"

# --- GKE, for xpk.sh only -----------------------------------------------------------------------

CLUSTER=              # the cluster's name
IMAGE=                # image that build pushes: repository of Artifact Registry, name and tag
NUM_SLICES=1          # slices that train one model
NODE_DISK_GB=200      # boot disk of a node, with image and cache
