#!/usr/bin/env bash
# Installs Debian's Chromium, which the tests of pages need; does nothing where there is one.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if [ -n "${CHROMIUM_BINARY:-}" ]; then exit 0; fi
cure="install Chromium or Chrome, or set CHROMIUM_BINARY to the path of one"
if ! command -v apt-get >/dev/null; then
  echo "there is no apt-get here: $cure" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "apt-get needs root, which neither this user nor sudo has without a password: $cure" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
