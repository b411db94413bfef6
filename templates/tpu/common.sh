# shellcheck shell=bash
# Shared by the scripts of this folder: settings, one-line errors, --dry-run, the training command.
# To be sourced; the header of the calling script is its usage text.

set -euo pipefail

fail() { # MESSAGE [CODE]: exits with one line; code 2 is wrong usage, 1 a failure
  printf 'error: %s\n' "$1" >&2
  exit "${2:-2}"
}

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  fail "bash $BASH_VERSION is too old: 4.4 or newer is needed, brew install bash on a Mac"
fi

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd -- "$HERE/../.." && pwd)
SETTINGS=${SETTINGS:-$HERE/settings.sh}
[[ -r $SETTINGS ]] || fail "there is no file $SETTINGS: set SETTINGS to your file; $HERE/settings.sh lists all settings"
# The user's file needs only the settings that differ.
source -- "$HERE/settings.sh"
# shellcheck source=/dev/null
source -- "$(cd -- "$(dirname -- "$SETTINGS")" && pwd)/$(basename -- "$SETTINGS")"

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# Handles --dry-run and --help anywhere; all other arguments go to ARGUMENTS.
DRY_RUN=
ARGUMENTS=()
for argument in "$@"; do
  case $argument in
    --dry-run) DRY_RUN=1 ;;
    -h | --help) usage && exit 0 ;;
    *) ARGUMENTS+=("$argument") ;;
  esac
done

say() { printf '%s\n' "$*" >&2; }

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
    [[ -n ${!name} ]] || fail "$name is empty: set it in $SETTINGS"
  done
}

need_gs() { # NAME…: settings that must be a folder of Cloud Storage
  local name
  for name in "$@"; do
    need "$name"
    [[ ${!name} == gs://?*/?* ]] || fail "$name is ${!name}: it must be gs://bucket/folder, set it in $SETTINGS"
  done
}

need_name() { # NAME must be valid for queued resources, xpk and Kubernetes
  need NAME
  [[ ${#NAME} -le 40 && $NAME =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    fail "NAME is $NAME: use a-z, 0-9 and -, a letter first, 40 at most; set it in $SETTINGS"
}

need_program() { # NAME WHERE
  [[ -n $DRY_RUN ]] || command -v "$1" >/dev/null || fail "$1 is not installed: $2" 1
}

bucket_of() { # gs://BUCKET/…: prints the bucket
  local path=${1#gs://}
  printf '%s' "${path%%/*}"
}

# Sets TRAIN, the arguments of `python -m training.train`, from the settings and further KEY=VALUE. If
# a key is given twice, the last value counts.
train_arguments() {
  local argument dataset=${DATASET%/}
  need_gs DATASET OUTPUT
  need RUN_NAME MODEL
  [[ -r $ROOT/training/configs/$MODEL.yml || ($MODEL == training/*.yml && -r $ROOT/$MODEL) ]] ||
    fail "MODEL is $MODEL: it must be the name of a file of training/configs, or the path of a .yml in training/, set it in $SETTINGS"
  for argument in "${TRAIN_ARGUMENTS[@]}" "$@"; do
    [[ $argument == ?*=* ]] || fail "$argument is not key=value: see docs/training.md"
  done
  if [[ -n $GCSFUSE_DIR ]]; then
    dataset=$GCSFUSE_DIR/${dataset#gs://*/}
  fi
  TRAIN=(
    "$MODEL"
    hardware=tpu
    attention=flash
    enable_autocheckpoint=true
    "network_train_files=$dataset/train"
    "network_eval_files=$dataset/test"
    "base_output_directory=$OUTPUT"
    "run_name=$RUN_NAME"
  )
  if [[ -n $CACHE_DIR ]]; then
    TRAIN+=("network_cache_dir=$CACHE_DIR")
  fi
  TRAIN+=("${TRAIN_ARGUMENTS[@]}" "$@")
}
