#!/usr/bin/env bash
# Sets up a host of a slice and trains on it until training has ended. queued_resources.sh runs it.
#
#   host.sh COMMAND [VARIABLE=VALUE …] [-- ARGUMENT OF training.train …]
#
#   setup     installs Python and packages, prepares disks
#   start     starts training in the background, as a service that starts again at boot
#   stop      sends SIGTERM to training, which saves a checkpoint
#   state     prints one line: training, starting, ended with CODE, stopped, not started, not set up
#   prepare   sets up disks and kernel, after every boot; setup and loop call it
#   loop      runs training repeatedly until it ends with 0, or with 2, wrong usage
#
# Everything is in ~/probeline: source, venv, run (the service's command, its log, its exit code).

set -euo pipefail

readonly HOME_DIR=$HOME/probeline
readonly VENV=$HOME_DIR/venv RUN=$HOME_DIR/run SOURCE=$HOME_DIR/source
readonly SERVICE=probeline-train
readonly SCRIPT=$SOURCE/templates/tpu/host.sh

fail() {
  printf 'error: %s: %s\n' "$(hostname)" "$1" >&2
  exit 1
}

say() { printf '[probeline] %s %s\n' "$(date -u +%FT%TZ)" "$*"; }

own_folder() { # FOLDER: creates it, owned by this user
  sudo mkdir -p "$1"
  sudo chown "$(id -un)" "$1"
}

prepare() {
  # Without it JAX warns that the TPU runtime starts and ends much more slowly.
  echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null || true
  if [[ -n ${CACHE_DEVICE:-} ]] && ! mountpoint -q "$CACHE_DIR"; then
    sudo blkid "$CACHE_DEVICE" >/dev/null || sudo mkfs.ext4 -q -m 0 "$CACHE_DEVICE"
    sudo mkdir -p "$CACHE_DIR"
    sudo mount -o noatime,discard "$CACHE_DEVICE" "$CACHE_DIR"
  fi
  [[ -z ${CACHE_DIR:-} ]] || own_folder "$CACHE_DIR"
  if [[ -n ${GCSFUSE_DIR:-} ]] && ! mountpoint -q "$GCSFUSE_DIR"; then
    mount_bucket
  fi
}

mount_bucket() {
  local flags
  command -v gcsfuse >/dev/null || sudo apt-get install -y -q gcsfuse ||
    fail "gcsfuse is not installed: see https://docs.cloud.google.com/storage/docs/cloud-storage-fuse/install, or leave GCSFUSE_DIR empty"
  fusermount -u -z "$GCSFUSE_DIR" 2>/dev/null || true # left by a killed gcsfuse
  own_folder "$GCSFUSE_DIR"
  read -ra flags <<<"$GCSFUSE_FLAGS"
  gcsfuse -o ro "${flags[@]}" "$GCSFUSE_BUCKET" "$GCSFUSE_DIR"
}

setup() {
  prepare
  # The image's Python is older than 3.12. uv installs one, and packages within seconds.
  export PATH=$HOME/.local/bin:$PATH
  command -v uv >/dev/null || python3 -m pip install --quiet --user uv
  uv venv --quiet --allow-existing --python 3.12 "$VENV"
  uv pip install --quiet --python "$VENV/bin/python" --constraint "$SOURCE/templates/tpu/constraints.txt" \
    --editable "${SOURCE}[tpu]"
  uv pip check --quiet --python "$VENV/bin/python" || fail "packages are incompatible: see above"
  say "$(hostname) is set up"
}

start() { # VARIABLE=VALUE … -- ARGUMENT …
  [[ -x $VENV/bin/python ]] || fail "there is no $VENV: run setup first"
  mkdir -p "$RUN"
  sudo systemctl stop "$SERVICE" 2>/dev/null || true
  rm -f "$RUN/ended"
  # The service's command, with every word quoted, so that it can also be run by hand.
  {
    echo '#!/usr/bin/env bash'
    printf 'exec env'
    printf ' %q' "${VARIABLES[@]}" bash "$SCRIPT" loop -- "$@"
    echo
  } >"$RUN/train"
  sudo tee "/etc/systemd/system/$SERVICE.service" >/dev/null <<EOF
[Unit]
Description=Probeline training
Wants=network-online.target
After=network-online.target
ConditionPathExists=!$RUN/ended

[Service]
User=$(id -un)
WorkingDirectory=$SOURCE
ExecStart=/usr/bin/env bash $RUN/train
StandardOutput=append:$RUN/train.log
StandardError=append:$RUN/train.log
LimitNOFILE=1048576
LimitMEMLOCK=infinity
# SIGTERM for the loop only, which forwards it: the loader's processes must outlive the checkpoint.
KillMode=mixed
TimeoutStopSec=${STOP_TIMEOUT_S:-300}
# A process killed for lack of memory is a crash like any other, not the end of the service.
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
EOF
  sudo systemctl daemon-reload
  sudo systemctl enable --quiet "$SERVICE"
  sudo systemctl start --no-block "$SERVICE"
  say "$(hostname) is training; its log is $RUN/train.log"
}

stop() { sudo systemctl disable --now --quiet "$SERVICE"; }

state() {
  local state
  if [[ ! -x $VENV/bin/python ]]; then
    state='not set up'
  elif [[ ! -e $RUN/train ]]; then
    state='not started'
  elif [[ -e $RUN/ended ]]; then
    state="ended with $(<"$RUN/ended")"
  elif systemctl is-active --quiet "$SERVICE"; then
    state="training $(tail -n 1 "$RUN/restarts" 2>/dev/null || true)"
  elif systemctl is-enabled --quiet "$SERVICE"; then
    state=starting
  else
    state=stopped
  fi
  echo "host $(hostname): ${state% }"
}

loop() { # ARGUMENT …
  local code restarts=0 child='' stopped=''
  set -m # training gets its own process group, so that leftover processes can be killed
  trap 'stopped=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
  rm -f "$RUN/restarts"
  while true; do
    code=0
    bash "${BASH_SOURCE[0]}" prepare || code=1
    [[ -z $stopped ]] || exit 143
    if ((code == 0)); then
      say "python -m training.train $*"
      "$VENV/bin/python" -m training.train "$@" &
      child=$!
      # A signal interrupts `wait`.
      while
        code=0
        wait "$child" || code=$?
        kill -0 "$child" 2>/dev/null
      do :; done
      kill -KILL -- "-$child" 2>/dev/null || true
      child=''
    fi
    if [[ -n $stopped ]] && ((code != 0)); then
      say "training was stopped and ended with $code"
      exit "$code"
    fi
    if ((code == 0 || code == 2 || restarts >= MAX_RESTARTS)); then
      say "training ended with $code after $restarts restarts"
      echo "$code" >"$RUN/ended"
      exit "$code"
    fi
    restarts=$((restarts + 1))
    echo "restart $restarts of $MAX_RESTARTS after code $code" >"$RUN/restarts"
    say "training ended with $code; again in $RESTART_DELAY_S s, restart $restarts of $MAX_RESTARTS"
    sleep "$RESTART_DELAY_S" &
    wait $! || true
    [[ -z $stopped ]] || exit 143
  done
}

command=${1:-}
shift || true
VARIABLES=()
while [[ $# -gt 0 && $1 != -- ]]; do
  [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || fail "$1 is not VARIABLE=VALUE"
  export "${1?}"
  VARIABLES+=("$1")
  shift
done
[[ $# -eq 0 ]] || shift
case $command in
  setup | start | stop | state | prepare | loop) "$command" "$@" ;;
  *) fail "${command:-nothing} is not a command: setup, start, stop, state, prepare or loop" ;;
esac
