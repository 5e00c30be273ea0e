#!/usr/bin/env bash
# 500 Sudokus, killed three times with SIGKILL at random moments and resumed, against the same run left alone.
# usage: resume.sh DIR    ten minutes on one core; exit status 0: all rows are the same, but for the time they took
set -euo pipefail
mkdir -p "$1"
cd "$1"
python3 -m unmask puzzles sudoku --count 500 --clues 28 -o puzzles.txt
eval=(python3 -m unmask eval sudoku --data puzzles.txt --sampler uniform --temperature 1 --steps 8 --rows)
[ -e alone.jsonl ] || "${eval[@]}" alone.jsonl
: >killed.jsonl
for kill in 1 2 3; do
    "${eval[@]}" killed.jsonl &
    before=$(wc -l <killed.jsonl)
    while [ "$(wc -l <killed.jsonl)" -le $((before + 33)) ]; do sleep 0.1; done
    sleep "$((RANDOM % 6)).$((RANDOM % 10))"
    kill -KILL $!
    wait $! || true
    echo "kill $kill: $(wc -l <killed.jsonl) whole lines of $(wc -c <killed.jsonl) bytes"
done
"${eval[@]}" killed.jsonl
python3 - <<'PYTHON'
from unmask import rows

runs = [rows.read(name) for name in ("alone.jsonl", "killed.jsonl")]
alone, killed = ([{**row, "seconds": None} for row in run.kept] for run in runs)
assert alone == killed, [(a, b) for a, b in zip(alone, killed) if a != b][:3]
print(f"{len(killed)} rows, all the same")
PYTHON
