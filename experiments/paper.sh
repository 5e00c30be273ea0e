#!/usr/bin/env bash
# All experiments of `unmask paper` on the embedded models, several at a time, since small models leave a GPU idle.
# usage: paper.sh DIR DEVICE [AT_A_TIME]    rows are kept: run it again to go on; texts are judged in a second pass
set -euo pipefail
dir=$1 device=$2 many=${3:-4}
mkdir -p "$dir"
for _ in 1 2 3; do # experiments share cells: one that finds such a cell being decoded waits for the next round
    {
        for place in sudoku countdown problems; do
            for name in samplers decay vote; do echo "$name $place"; done
        done
        for name in strength particles steps; do echo "$name sudoku"; done
        for name in quality guidance greedy particles strength steps paths; do echo "$name text"; done
    } | xargs -P "$many" -L 1 bash -c \
        'python3 -m unmask paper "$2" --on "$3" --device "$1" --out "$0" --judge none --no-pictures >"$0/$2-$3.txt" 2>&1 ||
            echo "$2 $3 failed: $(tail -n 1 "$0/$2-$3.txt")"' "$dir" "$device"
done
python3 -m unmask paper runtime --on text --device "$device" --out "$dir" --no-pictures # alone: it is timed
