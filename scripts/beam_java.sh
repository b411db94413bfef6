#!/usr/bin/env bash
# Runs a class of an engine's jars: beam_java.sh ENGINE FOLDER CLASS [ARGUMENT...]
# FOLDER/tmp has its temporary files. Flags for Java go into JAVA_FLAGS.
set -euo pipefail
engine=$1 folder=$2
shift 2
mkdir -p "$folder/tmp"
# Flink and Spark look into classes that Java keeps closed.
opens=()
for package in java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.time \
  java.util java.util.concurrent java.util.concurrent.atomic sun.nio.ch sun.security.action; do
  opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
# shellcheck disable=SC2086
exec java ${JAVA_FLAGS:-} "${opens[@]}" -Djava.io.tmpdir="$folder/tmp" \
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
  -cp "$(dirname "$0")/../.engines/$engine/*" "$@"
