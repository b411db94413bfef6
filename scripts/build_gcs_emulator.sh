#!/usr/bin/env bash
# Builds a GCS emulator, fake-gcs-server, into .engines/ with Go.
# It is patched where it does otherwise than GCS (gcs_emulator.patch).
# A lock lets parallel test processes share one build.
set -euo pipefail
version=v1.56.1
cd "$(dirname "$0")/.."
mkdir -p .engines
exec 9>.engines/fake-gcs-server.lock
python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' # macOS has no flock
[ -x .engines/fake-gcs-server ] && exit
module="github.com/fsouza/fake-gcs-server@$version"
(cd / && go mod download "$module")
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
cp -r "$(go env GOMODCACHE)/$module/." "$source"
chmod -R u+w "$source"
patch -s -d "$source" -p1 <scripts/gcs_emulator.patch
go build -C "$source" -o "$PWD/.engines/fake-gcs-server" .
