#!/usr/bin/env bash
# Serves Beam jobs on 127.0.0.1:PORT and runs each on a Flink inside: flink_server.sh [PORT] [FOLDER]
# FOLDER keeps what it writes. FOLDER/conf/flink-conf.yaml is Flink's configuration; if it is not
# there, it gets all defaults but one: failed tasks run again, after more time than a dead worker is
# kept (--environment_cache_millis); a lost task manager takes two attempts. Flags for Java go into
# JAVA_FLAGS.
# FLINK_MASTER=HOST:PORT names a cluster that is to run the jobs instead.
set -euo pipefail
port=${1:-8099}
folder=${2:-.engines/flink-work}
mkdir -p "$folder/conf"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
scripts/build_flink.sh
if [ ! -e "$folder/conf/flink-conf.yaml" ]; then
  cat >"$folder/conf/flink-conf.yaml" <<'END'
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 4
restart-strategy.fixed-delay.delay: 5 s
END
fi
exec scripts/beam_java.sh flink "$folder" org.apache.beam.runners.flink.FlinkJobServerDriver \
  --flink-conf-dir="$folder/conf" --flink-master="${FLINK_MASTER:-[auto]}" \
  --artifacts-dir="$folder/artifacts" \
  --job-host=127.0.0.1 --job-port="$port" --artifact-port=0 --expansion-port=0
