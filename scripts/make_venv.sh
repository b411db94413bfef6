#!/usr/bin/env bash
# Installs this clone with some of its extras: make_venv.sh PYTHON FOLDER EXTRA,…
#
# The virtual environment FOLDER is made if it is not there. requirements.txt has the version of each
# package. uv installs them in a fraction of the time of pip, so pip fetches it where there is none.
set -euo pipefail
python=$1 venv=$2 extras=$3

if [ ! -x "$venv/bin/python" ]; then
  # A version manager may offer 3.12 as `python` only, by .python-version.
  for candidate in "$python" python python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 12), (3, 13)))' 2>/dev/null; then
      found=$candidate
      break
    fi
  done
  if [ -z "${found:-}" ]; then
    echo "Probeline needs Python 3.12 or 3.13, and neither $python nor python is one: install it, or say make PYTHON=/path/to/python3.12" >&2
    exit 1
  fi
  "$found" -m venv "$venv"
fi

echo "Installing probeline[$extras] into $venv" >&2
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check install)
what=(--constraint requirements.txt --editable ".[$extras]")
uv=$(command -v uv) || { "${pip[@]}" uv && uv=$venv/bin/uv; } || true
# uv does not read the settings of pip, such as a mirror.
{ [ -n "$uv" ] && "$uv" pip install --quiet --python "$venv/bin/python" "${what[@]}"; } ||
  "${pip[@]}" --no-compile "${what[@]}"
