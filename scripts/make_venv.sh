#!/usr/bin/env bash
# Makes a virtual environment with everything that development needs: make_venv.sh PYTHON FOLDER
set -euo pipefail
python=$1 venv=$2

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
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt --editable '.[gcp,training,maxtext,plots,report,docs,dev]'
