#!/usr/bin/env bash
# Trains on GKE with xpk: image, cluster, workload. The alternative to queued_resources.sh; the only
# way for more than one slice, and for TPU7x, which the Cloud TPU API does not have.
#
#   templates/tpu/xpk.sh [--dry-run] COMMAND
#
#   build                builds the image of this checkout and pushes it
#   cluster              creates a cluster with the slices; once
#   attach               lets workloads mount the dataset's bucket at GCSFUSE_DIR; once
#   train [KEY=VALUE …]  trains; the cluster restarts all hosts after a failure or a preemption
#   status               shows the workloads of the cluster
#   logs                 follows the logs of all hosts
#   delete               ends the workload, which saves a checkpoint; the cluster remains and is billed
#
# settings.sh has the settings; --dry-run prints the commands, one per line, and runs none. xpk is
# a Python package: https://github.com/AI-Hypercomputer/xpk/blob/main/docs/installation.md

source -- "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly STORAGE=$NAME-dataset

xpk_() { # COMMAND…: of xpk
  run xpk "$@" --project="$PROJECT" --zone="$ZONE" --cluster="$CLUSTER"
}

build() {
  need IMAGE
  need_program docker "see https://docs.docker.com/engine/install/"
  run docker build --platform=linux/amd64 --file="$HERE/Dockerfile" --tag="$IMAGE" "$ROOT"
  run docker push "$IMAGE"
}

cluster() {
  local capacity=(--on-demand) nodes=(--disk-size="$NODE_DISK_GB")
  [[ $SPOT == false ]] || capacity=(--spot)
  [[ -z $SERVICE_ACCOUNT ]] || nodes+=(--service-account="$SERVICE_ACCOUNT")
  xpk_ cluster create --tpu-type="$ACCELERATOR_TYPE" --num-slices="$NUM_SLICES" "${capacity[@]}" \
    --custom-nodepool-arguments="${nodes[*]}"
}

attach() {
  local flags options
  need_gs DATASET
  need GCSFUSE_DIR
  read -ra flags <<<"$GCSFUSE_FLAGS"
  options=$(IFS=, && echo "${flags[*]#--}") # mount options are gcsfuse's flags without the dashes
  xpk_ storage attach "$STORAGE" --type=gcsfuse --bucket="$(bucket_of "$DATASET")" --size=1 \
    --mount-point="$GCSFUSE_DIR" --readonly=true --auto-mount=false --mount-options="$options"
}

train() {
  local flags=() variable
  need IMAGE
  train_arguments "$@"
  for variable in "${ENVIRONMENT[@]}"; do
    flags+=(--env="$variable")
  done
  [[ -z $GCSFUSE_DIR ]] || flags+=(--storage="$STORAGE")
  # A JobSet restarts on code 42 and codes from 127; this adds 1, while 2 (wrong usage) ends it.
  # xpk sends SIGTERM to the command's shell: exec replaces that shell by training.
  xpk_ workload create --workload="$NAME" --docker-image="$IMAGE" --tpu-type="$ACCELERATOR_TYPE" \
    --num-slices="$NUM_SLICES" --max-restarts="$MAX_RESTARTS" --restart-on-exit-codes=1 \
    --termination-grace-period-seconds="$STOP_TIMEOUT_S" "${flags[@]}" \
    --command="exec $(quoted python -m training.train "${TRAIN[@]}")"
}

status() { xpk_ workload list; }

logs() {
  need_program kubectl "gcloud components install kubectl"
  run kubectl logs --selector="xpk.google.com/workload=$NAME" --all-containers --prefix --follow \
    --tail=100 --max-log-requests=1000
}

delete() { xpk_ workload delete --workload="$NAME"; }

command=${ARGUMENTS[0]:-}
case $command in
  build | cluster | attach | status | logs | delete)
    [[ ${#ARGUMENTS[@]} -eq 1 ]] || fail "$command takes no ${ARGUMENTS[1]}: see --help"
    ;;
  train) ;;
  *) fail "${command:-nothing} is not a command: build, cluster, attach, train, status, logs or delete; see --help" ;;
esac
need_name
if [[ $command != build ]]; then
  need PROJECT ZONE CLUSTER ACCELERATOR_TYPE NUM_SLICES
  [[ $SPOT == true || $SPOT == false ]] || fail "SPOT is $SPOT: it must be true or false, set it in $SETTINGS"
  need_program xpk "see https://github.com/AI-Hypercomputer/xpk/blob/main/docs/installation.md"
fi
"$command" "${ARGUMENTS[@]:1}"
