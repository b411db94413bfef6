#!/usr/bin/env bash
# A Flink cluster of separate processes on this machine: a job manager, two task managers with a
# slot each, which start again when they end, and Beam's job server on 127.0.0.1:PORT.
#   flink_cluster.sh [PORT] [FOLDER] [FLINK_PORT]
# FOLDER keeps what they write, with a log of each; Flink's page is on FLINK_PORT, its RPC one above.
set -euo pipefail
port=${1:-8099}
folder=${2:-.engines/flink-cluster}
flink_port=${3:-8081}
mkdir -p "$folder/conf"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
if ! python -c 'import importlib.util as u; exit(not u.find_spec("apache_beam"))'; then
  echo "error: workers run as the python of PATH, which lacks Beam: activate the environment" >&2
  exit 1
fi
scripts/build_flink.sh
# Without Flink's own start scripts, a task manager has no defaults for its memory.
cat >"$folder/conf/flink-conf.yaml" <<END
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: $((flink_port + 1))
rest.address: 127.0.0.1
rest.port: $flink_port
heartbeat.interval: 2000
classloader.resolve-order: parent-first
taskmanager.host: 127.0.0.1
taskmanager.cpu.cores: 1
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 192m
taskmanager.memory.network.max: 192m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 6
restart-strategy.fixed-delay.delay: 5 s
END
start() { # NAME CLASS: as often as it ends
  while :; do
    scripts/beam_java.sh flink "$folder" "org.apache.flink.runtime.$2" \
      --configDir "$folder/conf" || true
    sleep 1
  done >>"$folder/$1.log" 2>&1
}
trap 'trap - EXIT TERM; kill 0' EXIT TERM
start job-manager entrypoint.StandaloneSessionClusterEntrypoint &
for number in 1 2; do
  start "task-manager-$number" taskexecutor.TaskManagerRunner &
done
FLINK_MASTER=127.0.0.1:$flink_port scripts/flink_server.sh "$port" "$folder" &
wait $!  # without the job server, the rest is of no use
