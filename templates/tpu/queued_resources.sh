#!/usr/bin/env bash
# Trains on a slice of Cloud TPU: requests it, sets up its hosts, trains, monitors, deletes.
#
#   templates/tpu/queued_resources.sh [--dry-run] COMMAND
#
#   create               requests the slice, which is created when there is capacity
#   status               shows the state of the slice and of each host
#   setup                waits for the slice, installs this checkout on its hosts
#   train [KEY=VALUE …]  starts training on all hosts; it continues without this terminal
#   logs [WORKER|all]    follows the log of a host (default: 0)
#   stop                 saves a checkpoint and ends training; `train` continues from it
#   keep [KEY=VALUE …]   does all of this until training has ended, and again after a preemption
#   delete               deletes the slice, its disks and the request
#
# settings.sh has the settings; --dry-run prints the commands, one per line, and runs none.
# keep exits with 0 on success, 2 for arguments that training refuses, and 1 if it gave up. It runs
# on this machine: use a small VM, or tmux, to keep it alive.

source -- "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly ON_HOST=probeline/source/templates/tpu/host.sh

tpus() { # COMMAND…: of gcloud compute tpus
  run "${GCLOUD[@]}" compute tpus "$@" --project="$PROJECT" --zone="$ZONE" --quiet
}

on_hosts() { # WORKER LINE: runs a line of shell on a host, or on all of them
  tpus tpu-vm ssh "$NAME" "${SSH_FLAGS[@]}" --worker="$1" --command="$2"
}

host_variables() { # the settings for host.sh
  HOST_VARIABLES=(
    "CACHE_DIR=$CACHE_DIR"
    "CACHE_DEVICE=$CACHE_DEVICE"
    "GCSFUSE_DIR=$GCSFUSE_DIR"
    "GCSFUSE_FLAGS=$GCSFUSE_FLAGS"
    "GCSFUSE_BUCKET=$(bucket_of "$DATASET")"
    "MAX_RESTARTS=$MAX_RESTARTS"
    "RESTART_DELAY_S=$RESTART_DELAY_S"
    "STOP_TIMEOUT_S=$STOP_TIMEOUT_S"
    "${ENVIRONMENT[@]}"
  )
}

create() {
  local flags=()
  need ACCELERATOR_TYPE RUNTIME_VERSION
  [[ $SPOT == true || $SPOT == false ]] || fail "SPOT is $SPOT: it must be true or false, set it in $SETTINGS"
  [[ $SPOT == false ]] || flags+=(--spot)
  [[ -z $SERVICE_ACCOUNT ]] || flags+=(--service-account="$SERVICE_ACCOUNT")
  tpus queued-resources create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR_TYPE" \
    --runtime-version="$RUNTIME_VERSION" "${flags[@]}" "${CREATE_FLAGS[@]}"
}

delete() { # slice and request; without --force a request can be deleted only after its slice
  tpus queued-resources delete "$NAME" --force
}

slice_state() { # prints ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED, …; fails if there is no request
  tpus queued-resources describe "$NAME" --format='value(state.state)'
}

wait_until_active() {
  local state
  if [[ -n $DRY_RUN ]]; then
    slice_state && return
  fi
  while state=$(slice_state); do
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED)
        fail "the slice $NAME is $state, it will not become active: $0 delete, then create" 1
        ;;
    esac
    say "waiting for the slice $NAME: $state"
    sleep "$POLL_S"
  done
  fail "there is no slice $NAME in $ZONE: $0 create" 1
}

setup() {
  local package=$ROOT/build/probeline.tgz
  wait_until_active
  run mkdir -p "$ROOT/build"
  run tar -czf "$package" -C "$ROOT" --exclude=__pycache__ \
    setup.py pyproject.toml README.md beam_pipeline training templates/tpu
  tpus tpu-vm scp "$package" "$NAME:" "${SSH_FLAGS[@]}" --worker=all
  on_hosts all 'rm -rf probeline/source && mkdir -p probeline/source && tar -xzf probeline.tgz -C probeline/source'
  host_variables
  on_hosts all "$(quoted bash "$ON_HOST" setup "${HOST_VARIABLES[@]}")"
}

train() {
  train_arguments "$@"
  host_variables
  on_hosts all "$(quoted bash "$ON_HOST" start "${HOST_VARIABLES[@]}" -- "${TRAIN[@]}")"
}

stop() { on_hosts all "$(quoted bash "$ON_HOST" stop)"; }

host_states() { # one line per host
  on_hosts all "if [ -e $ON_HOST ]; then bash $ON_HOST state; else echo \"host \$(hostname): not set up\"; fi"
}

status() {
  local state
  if [[ -n $DRY_RUN ]]; then
    slice_state && host_states && return
  fi
  state=$(slice_state) || fail "there is no slice $NAME in $ZONE: $0 create" 1
  echo "slice $NAME: $state"
  [[ $state != ACTIVE ]] || host_states
}

logs() {
  local worker=${1:-0}
  [[ $worker == all || $worker =~ ^[0-9]+$ ]] || fail "$worker is not a worker: give its number, or all"
  if [[ $worker == all ]]; then
    # shellcheck disable=SC2016 # the host expands it
    on_hosts all 'tail -n 20 -F probeline/run/train.log | sed -u "s/^/$(hostname): /"'
  else
    on_hosts "$worker" 'tail -n 100 -F probeline/run/train.log'
  fi
}

keep() {
  local state hosts
  train_arguments "$@"
  if [[ -n $DRY_RUN ]]; then
    create && setup && train "$@" && host_states && delete && return
  fi
  while true; do
    # A request that cannot be found is created; if only the network is down, that fails as well.
    state=$(slice_state 2>/dev/null) || state=missing
    case $state in
      missing) create || say "cannot request the slice $NAME yet" ;;
      FAILED | SUSPENDED) # usually preempted: only a new request gives a slice
        say "the slice $NAME is $state: requesting a new one"
        delete || say "cannot delete it yet"
        ;;
      ACTIVE)
        hosts=$(host_states 2>/dev/null | grep -o 'host [^:]*: .*') || hosts=
        case $hosts in
          '') say "the hosts of $NAME do not answer" ;;
          *': ended with 2'*) fail "training refused its arguments: see $0 logs" 2 ;;
          *': not set up'* | *': not started'*) 
            if ! { bash "$0" setup && bash "$0" train "$@"; }; then
              say "cannot set up the hosts yet"
            fi
            ;;
          *': stopped'*) fail "training was stopped: $0 train continues it" 1 ;;
          *': training'* | *': starting'*) ;;
          *': ended with '[1-9]*) fail "training ended $MAX_RESTARTS times without success: see $0 logs" 1 ;;
          *) say "training has ended; $0 delete ends the costs" && return ;;
        esac
        ;;
      *) say "waiting for the slice $NAME: $state" ;;
    esac
    sleep "$POLL_S"
  done
}

command=${ARGUMENTS[0]:-}
case $command in
  create | status | setup | stop | delete)
    [[ ${#ARGUMENTS[@]} -eq 1 ]] || fail "$command takes no ${ARGUMENTS[1]}: see --help"
    ;;
  logs) [[ ${#ARGUMENTS[@]} -le 2 ]] || fail "logs takes one worker: see --help" ;;
  train | keep) ;;
  *) fail "${command:-nothing} is not a command: create, status, setup, train, logs, stop, keep or delete; see --help" ;;
esac
need PROJECT ZONE
need_name
need_program "${GCLOUD[0]}" "see https://docs.cloud.google.com/sdk/docs/install"
"$command" "${ARGUMENTS[@]:1}"
