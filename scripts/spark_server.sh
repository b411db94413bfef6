#!/usr/bin/env bash
# Serves Beam jobs on 127.0.0.1:PORT and runs each on a Spark inside: spark_server.sh [PORT] [FOLDER]
# FOLDER keeps what it writes. Flags for Java go into JAVA_FLAGS.
# SPARK_MASTER=spark://HOST:PORT names a cluster that is to run the jobs instead.
set -euo pipefail
port=${1:-8199}
folder=${2:-.engines/spark-work}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
scripts/build_spark.sh
exec scripts/beam_java.sh spark "$folder" org.apache.beam.runners.spark.SparkJobServerDriver \
  --spark-master-url="${SPARK_MASTER:-local[2]}" \
  --artifacts-dir="$folder/artifacts" \
  --job-host=127.0.0.1 --job-port="$port" --artifact-port=0 --expansion-port=0
