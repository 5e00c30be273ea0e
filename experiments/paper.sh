#!/usr/bin/env bash
# All experiments of `unmask paper` on the embedded models, several cells at a time, since small models leave a GPU idle.
# usage: paper.sh DIR DEVICE [AT_A_TIME] [SECONDS]   rows are kept: run it again to go on; texts are judged in a second pass:
#   UNMASK_STORIES=llama2.data unmask paper quality --on text --dtype bfloat16 --judge stories15M --out DIR
# The dtype is that of the pages; DTYPE= takes the model's own.
set -euo pipefail
dir=$1 device=$2 many=${3:-8} seconds=${4:-3600}
dtype=${DTYPE-bfloat16}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
"${PYTHON:-python3}" experiments/paper_cells.py "$dir" --device "$device" ${dtype:+--dtype "$dtype"} --processes "$many" --limit "$seconds"
# alone, since it is timed, and with its one decode a cell
for name in runtime paths; do
    "${PYTHON:-python3}" -m unmask paper "$name" --on text --device "$device" --out "$dir" --no-pictures
done
