#!/usr/bin/env bash
# Gathers the jars of ENGINE_pom.xml in .engines/ENGINE/ with Maven: gather_jars.sh ENGINE
# A lock lets parallel test processes share one build.
set -euo pipefail
engine=$1
cd "$(dirname "$0")/.."
for tool in java mvn; do
  if ! command -v "$tool" >/dev/null; then
    echo "error: no $tool here: $engine needs Java (11 or 17) and Maven; install them" >&2
    exit 1
  fi
done
mkdir -p .engines
folder=.engines/$engine
exec 9>"$folder.lock"
python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' # macOS has no flock
cmp -s "scripts/${engine}_pom.xml" "$folder/pom.xml" && exit
rm -rf "$folder" "$folder.tmp"
mvn -q -B -Dstyle.color=never -f "scripts/${engine}_pom.xml" dependency:copy-dependencies \
  -DoutputDirectory="$PWD/$folder.tmp" >&2
cp "scripts/${engine}_pom.xml" "$folder.tmp/pom.xml"
mv "$folder.tmp" "$folder"
