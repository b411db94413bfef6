#!/usr/bin/env bash
# Gathers Beam's Flink job server, with a Flink inside, in .engines/flink/ with Maven.
exec "$(dirname "$0")/gather_jars.sh" flink
