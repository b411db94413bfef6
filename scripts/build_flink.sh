#!/usr/bin/env bash
# Gathers Beam's Flink job server, with a Flink inside, in .engines/flink/ with Maven.
# Versions stand in flink_pom.xml. A lock lets parallel test processes share one build.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in java mvn; do
  if ! command -v "$tool" >/dev/null; then
    echo "error: no $tool here: Flink needs Java (11 or 17) and Maven; install them" >&2
    exit 1
  fi
done
mkdir -p .engines
exec 9>.engines/flink.lock
flock 9
cmp -s scripts/flink_pom.xml .engines/flink/pom.xml && exit
rm -rf .engines/flink .engines/flink.tmp
mvn -q -B -Dstyle.color=never -f scripts/flink_pom.xml dependency:copy-dependencies \
  -DoutputDirectory="$PWD/.engines/flink.tmp" >&2
cp scripts/flink_pom.xml .engines/flink.tmp/pom.xml
mv .engines/flink.tmp .engines/flink
