# shellcheck shell=bash
# Shared by build.sh and launch.sh: one-line errors, --dry-run, settings from the environment.
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
ROOT=$(cd -- "$HERE/.." && pwd)

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# Handles --dry-run and --help anywhere before --; all other arguments go to ARGUMENTS.
DRY_RUN=
ARGUMENTS=()
while [[ $# -gt 0 && $1 != -- ]]; do
  case $1 in
    --dry-run) DRY_RUN=1 ;;
    -h | --help) usage && exit 0 ;;
    *) ARGUMENTS+=("$1") ;;
  esac
  shift
done
ARGUMENTS+=("$@")

run() { # COMMAND…: runs it, or prints it quoted for a shell
  local words
  if [[ -n $DRY_RUN ]]; then
    printf -v words '%q ' "$@"
    printf '%s\n' "${words% }"
  else
    "$@"
  fi
}

need() { # NAME WHAT: a variable that must not be empty
  [[ -n ${!1:-} ]] || fail "$1 is empty: set it to $2"
}

need_gcloud() {
  [[ -n $DRY_RUN ]] || command -v gcloud >/dev/null ||
    fail "gcloud is not installed: see https://docs.cloud.google.com/sdk/docs/install" 1
}

# Checks a template's name and the settings, and sets TEMPLATE_FILE. Both scripts need the same TAG.
template() { # NAME
  local names
  names=$(cd -- "$HERE" && printf '%s ' */metadata.json)
  names=${names//\/metadata.json/}
  [[ -n $1 && -r $HERE/$1/metadata.json ]] || fail "${1:-nothing} is not a template: ${names% }"
  need PROJECT "the project's id"
  need REGION "the region of the jobs and of the repository, such as europe-west4"
  need BUCKET "the bucket of templates and temporary files, without gs://"
  [[ $BUCKET != *[:/]* ]] || fail "BUCKET is $BUCKET: give only the bucket's name"
  TAG=${TAG:-$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$ROOT/beam_pipeline/__init__.py")}
  # shellcheck disable=SC2034 # for the script that sources this
  TEMPLATE_FILE=gs://$BUCKET/templates/$1-$TAG.json
}
