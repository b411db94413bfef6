#!/usr/bin/env bash
# Builds Beam's Prism runner into .engines/ with Go.
# A lock lets parallel test processes share one build.
set -euo pipefail
version=v2.77.0
cd "$(dirname "$0")/.."
mkdir -p .engines
exec 9>.engines/prism.lock
python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' # macOS has no flock
[ -x .engines/prism ] || GOBIN="$PWD/.engines" go install "github.com/apache/beam/sdks/v2/go/cmd/prism@$version"
