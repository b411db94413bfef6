#!/usr/bin/env bash
# Gathers Beam's Spark job server, with a Spark inside, in .engines/spark/ with Maven.
exec "$(dirname "$0")/gather_jars.sh" spark
