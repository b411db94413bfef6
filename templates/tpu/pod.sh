#!/usr/bin/env bash
# Trains on a slice of Cloud TPU: requests it, installs this checkout, trains, resumes, deletes.
#
#   SETTINGS=run.sh templates/tpu/pod.sh [--dry-run] COMMAND
#
#   create               requests the slice, which is created when there is capacity
#   setup                waits for the slice, installs this checkout on all hosts
#   train [KEY=VALUE …]  starts training as a service of each host, which restarts it after a failure
#   status               shows the state of the slice and of training on each host
#   logs [WORKER]        follows the log of a host (default: 0)
#   stop                 saves a checkpoint and ends training
#   delete               deletes the slice, its disks and the request
#
# Training continues without this terminal. `train` continues from the last checkpoint of RUN_NAME,
# after `stop`, on a slice of another size, or after a preemption: delete, create, setup, train.
# SETTINGS is your file with the settings below that differ. --dry-run prints the commands, one per
# line, and runs none.

set -euo pipefail

# --- settings -----------------------------------------------------------------------------------

PROJECT=              # the project's ID
ZONE=                 # a zone with the accelerator: gcloud compute tpus locations list
SERVICE_ACCOUNT=      # e-mail of the hosts' account; empty: Compute Engine's default
DATASET=              # gs://bucket/rows: the folder of a dataset with train/ and test/
OUTPUT=               # gs://bucket/runs: checkpoints and TensorBoard are written to RUN_NAME below it
RUN_NAME=             # a known name continues from that run's last checkpoint
MODEL=95m             # a config of training/configs, or the path of a .yml in training/
TRAIN_ARGUMENTS=(checkpoint_period=1000)   # further key=value, see docs/training_keys.md
ENVIRONMENT=(DECOUPLE_GCLOUD=FALSE)        # FALSE writes TensorBoard files to OUTPUT; LIBTPU_INIT_ARGS=…
NAME=probeline        # name of the slice and its request
ACCELERATOR_TYPE=v6e-16             # generation and chips (v4, v5p: cores)
RUNTIME_VERSION=v2-alpha-tpuv6e     # v5p: v2-alpha-tpuv5, v5e: v2-alpha-tpuv5-lite, v4: tpu-ubuntu2204-base
CREATE_FLAGS=(--spot)               # of queued-resources create: --reserved, --network=…, --internal-ips
SSH_FLAGS=()          # of ssh and scp: --internal-ip, --tunnel-through-iap
CACHE_DIR=/mnt/disks/cache          # column cache, 10 to 22 bytes per measurement; empty: no cache
POLL_S=30             # seconds between checks of the slice

# ------------------------------------------------------------------------------------------------

fail() { # MESSAGE [CODE]: exits with one line; code 2 is a usage error, 1 a failure
  printf 'error: %s\n' "$1" >&2
  exit "${2:-2}"
}

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
DRY_RUN=
ARGUMENTS=()
for argument in "$@"; do
  case $argument in
    --dry-run) DRY_RUN=1 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) ARGUMENTS+=("$argument") ;;
  esac
done
if [[ -n ${SETTINGS:-} ]]; then
  [[ -r $SETTINGS ]] || fail "cannot read SETTINGS=$SETTINGS"
  # shellcheck source=/dev/null
  source -- "$(cd -- "$(dirname -- "$SETTINGS")" && pwd)/$(basename -- "$SETTINGS")"
fi

quoted() { # WORD…: prints them quoted for a shell
  local words
  printf -v words '%q ' "$@"
  printf '%s' "${words% }"
}

run() { # COMMAND…: runs it, or prints it with --dry-run
  if [[ -n $DRY_RUN ]]; then
    quoted "$@" && echo
  else
    "$@"
  fi
}

need() { # NAME…: settings that must not be empty
  local name
  for name in "$@"; do
    [[ -n ${!name} ]] || fail "$name is empty: set it in the file SETTINGS"
  done
}

tpus() { # COMMAND…: of gcloud compute tpus
  run gcloud compute tpus "$@" --project="$PROJECT" --zone="$ZONE" --quiet
}

on_hosts() { # WORKER LINE: runs a line of shell on a host, or on all of them
  tpus tpu-vm ssh "$NAME" "${SSH_FLAGS[@]}" --worker="$1" --command="$2"
}

slice_state() { # prints ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED, …
  tpus queued-resources describe "$NAME" --format='value(state.state)'
}

create() {
  local flags=("${CREATE_FLAGS[@]}")
  [[ -z $SERVICE_ACCOUNT ]] || flags+=(--service-account="$SERVICE_ACCOUNT")
  tpus queued-resources create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR_TYPE" \
    --runtime-version="$RUNTIME_VERSION" "${flags[@]}"
}

wait_until_active() {
  local state=ACTIVE
  [[ -z $DRY_RUN ]] || return 0
  while state=$(slice_state) && [[ $state != ACTIVE ]]; do
    case $state in
      FAILED | SUSPEND*) fail "the slice $NAME is $state and will not become active: delete, then create" 1 ;;
    esac
    printf 'waiting for the slice %s: %s\n' "$NAME" "$state" >&2
    sleep "$POLL_S"
  done
  [[ $state == ACTIVE ]] || fail "there is no slice $NAME in $ZONE: run create" 1
}

setup() {
  local package=$ROOT/build/probeline.tgz
  wait_until_active
  run mkdir -p "$ROOT/build"
  run tar -czf "$package" -C "$ROOT" --exclude=__pycache__ \
    setup.py pyproject.toml README.md beam_pipeline training templates/tpu/constraints.txt
  tpus tpu-vm scp "$package" "$NAME:" "${SSH_FLAGS[@]}" --worker=all
  # The image's Python is older than 3.12; uv installs one.
  on_hosts all 'set -e; rm -rf probeline; mkdir probeline; tar -xzf probeline.tgz -C probeline
export PATH=$HOME/.local/bin:$PATH
command -v uv >/dev/null || python3 -m pip install --quiet --user uv
uv venv --quiet --clear --python 3.12 venv
uv pip install --quiet --python venv/bin/python --constraint probeline/templates/tpu/constraints.txt --editable "probeline[tpu]"
uv pip check --quiet --python venv/bin/python'
}

# Sets TRAIN, the arguments of `python -m training.train`. The last value of a repeated key counts.
train_arguments() {
  local argument place
  need DATASET OUTPUT RUN_NAME MODEL
  for argument in "$DATASET" "$OUTPUT"; do
    [[ $argument == gs://?*/?* ]] || fail "$argument is not gs://bucket/folder"
  done
  [[ -r $ROOT/training/configs/$MODEL.yml || ($MODEL == training/*.yml && -r $ROOT/$MODEL) ]] ||
    fail "MODEL=$MODEL is neither a config of training/configs nor a .yml in training/"
  for argument in "${TRAIN_ARGUMENTS[@]}" "$@"; do
    [[ $argument == ?*=* ]] || fail "$argument is not key=value: see docs/training_keys.md"
  done
  TRAIN=(
    "$MODEL" hardware=tpu attention=flash enable_autocheckpoint=true
    "network_train_files=${DATASET%/}/train" "network_eval_files=${DATASET%/}/test"
    "base_output_directory=$OUTPUT" "run_name=$RUN_NAME"
  )
  [[ -z $CACHE_DIR ]] || TRAIN+=("network_cache_dir=$CACHE_DIR")
  for argument in "${TRAIN_ARGUMENTS[@]}" "$@"; do
    for place in "${!TRAIN[@]}"; do
      if [[ ${TRAIN[place]%%=*} == "${argument%%=*}" ]]; then unset "TRAIN[place]"; fi
    done
    TRAIN+=("$argument")
  done
}

train() {
  local prepare='' variables=() variable
  train_arguments "$@"
  for variable in "${ENVIRONMENT[@]}"; do
    variables+=("--setenv=$variable")
  done
  # shellcheck disable=SC2016 # the host expands $(id -un)
  [[ -z $CACHE_DIR ]] || prepare="sudo install -d -o \"\$(id -un)\" $(quoted "$CACHE_DIR"); "
  # SIGTERM is for training only, which saves a checkpoint: the loader's processes must outlive it.
  # Code 2 is a usage error. A process killed for lack of memory is a failure like any other.
  on_hosts all "${prepare}sudo systemctl stop probeline-train 2>/dev/null; \
sudo systemctl reset-failed probeline-train 2>/dev/null; \
sudo systemd-run --unit=probeline-train --uid=\"\$(id -un)\" --working-directory=\"\$HOME/probeline\" \
--remain-after-exit --property=Restart=on-failure --property=RestartPreventExitStatus=2 \
--property=RestartSec=30 --property=KillMode=mixed --property=TimeoutStopSec=300 \
--property=OOMPolicy=continue --property=LimitNOFILE=1048576 --property=LimitMEMLOCK=infinity \
--property=StandardOutput=append:\"\$HOME/train.log\" --property=StandardError=append:\"\$HOME/train.log\" \
$(quoted "${variables[@]}") \"\$HOME/venv/bin/python\" -m training.train $(quoted "${TRAIN[@]}")"
}

status() {
  tpus queued-resources describe "$NAME" --format='value(name,state.state)'
  # shellcheck disable=SC2016 # the host expands it
  on_hosts all 'echo "$(hostname): $(systemctl show probeline-train --property=SubState,NRestarts,ExecMainStatus | paste -sd " ")"; tail -n 1 train.log 2>/dev/null || true'
}

logs() { on_hosts "${1:-0}" 'tail -n 100 -F train.log'; }

stop() { on_hosts all 'sudo systemctl stop probeline-train'; }

delete() { # slice and request; without --force a request can be deleted only after its slice
  tpus queued-resources delete "$NAME" --force
}

command=${ARGUMENTS[0]:-}
case $command in
  create | setup | status | stop | delete)
    [[ ${#ARGUMENTS[@]} -eq 1 ]] || fail "$command takes no argument, not ${ARGUMENTS[1]}: see --help"
    ;;
  logs) [[ ${#ARGUMENTS[@]} -le 2 && ${ARGUMENTS[1]:-0} =~ ^[0-9]+$ ]] || fail "logs takes one number of a worker: see --help" ;;
  train) ;;
  *) fail "${command:-nothing} is not a command: create, setup, train, status, logs, stop or delete; see --help" ;;
esac
need PROJECT ZONE NAME ACCELERATOR_TYPE RUNTIME_VERSION
[[ -n $DRY_RUN ]] || command -v gcloud >/dev/null ||
  fail "gcloud is not installed: see https://docs.cloud.google.com/sdk/docs/install" 1
"$command" "${ARGUMENTS[@]:1}"
