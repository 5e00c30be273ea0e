#!/usr/bin/env bash
# What the research pages still lack and a GPU gives, in stages that are bounded in time and do not need each other.
#
#   gpu_rest.sh STAGE OUT SECONDS     run from the root of a checkout or of a copy of it
#
#   speed      a step with and without a constraint at 7.5 billion weights         alone on the GPU, 1 core
#   table7     Table 7 at MDLM's size, random weights                              alone on the GPU, 1 core
#   runtime    Table 7 on the bundled text                                         alone on the GPU, 1 core
#   rewarding  self-rewarding SMC as its authors run it, puzzles `held`            7 processes
#   small      accuracy in a form; the interval; the law of a token by steps       5 processes
#   random     1,000 patterns x 210 cases                                          CPU only, 16 processes (JOBS)
#   paper      all cells of the paper on the bundled models                        8 processes (PROCESSES)
#   timed      speed, table7, runtime, one after another: a third of SECONDS each
#   beside     rewarding, small and random at once
#   unpack     OUT: puts what came back in OUT into RUN, to continue there; SECONDS is not used
#
# Rows are kept in RUN (runs/gpu_rest) and a stage continues where it was; they are packed into OUT every 45 seconds:
# rest.tar.xz, and paper.part-00 and so on (`cat paper.part-* | tar xJ -C DIR`). A copy without .git needs
# UNMASK_COMMIT="$(git rev-parse HEAD):$(git rev-parse HEAD:src/unmask)", or its rows have no commit.
# For a trial on a CPU: DEVICE=cpu TINY=1 JOBS=2 PROCESSES=2.
set -uo pipefail
[ $# -ge 2 ] || { sed -n 2,24p "$0" && exit 2; }
stage=$1 out=$2 seconds=${3:-300}
run=${RUN:-runs/gpu_rest} device=${DEVICE:-cuda} tiny=${TINY:-}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTHON=${PYTHON:-python3}
python=$PYTHON began=$SECONDS
mkdir -p "$run/logs" "$run/rows" "$out"
half=(--dtype bfloat16)
[ -z "$tiny" ] || half=()
run=$(cd "$run" && pwd) out=$(cd "$out" && pwd)

left() { echo $((seconds - (SECONDS - began))); } # of the stage

pack() { # everything but the paper's rows, which pack themselves
    local new
    new=$(mktemp "$out/.new.XXXXXX")
    tar c -C "$run" --warning=no-file-changed logs rows | xz -T 2 -1 >"$new"
    mv "$new" "$out/rest.tar.xz"
}

job() { # name command...: in the background; its log is kept, one line tells how it ended
    local name=$1
    shift
    (
        at=$SECONDS code=0
        timeout -k 5 "$(left)" "$@" >"$run/logs/$name.txt" 2>&1 </dev/null || code=$?
        [ "$code" = 0 ] && echo "$name: $((SECONDS - at)) s" && exit 0
        echo "$name: ended with $code after $((SECONDS - at)) s: $(tail -n 1 "$run/logs/$name.txt" | cut -c 1-300)"
        exit 1
    ) &
    jobs+=($!)
}

finish() { # waits for all jobs, packing all along; fails if one of them did
    local bad=0 packer
    (while sleep 45; do pack; done) &
    packer=$!
    for one in "${jobs[@]}"; do wait "$one" || bad=1; done
    kill "$packer" 2>/dev/null
    wait "$packer" 2>/dev/null
    pack
    jobs=()
    return $bad
}
jobs=()

# --- timed: alone on the GPU -----------------------------------------------------------------------------------------

speed() {
    local size=(--width 4096 --layers 32 --rounds 4 --steps 6)
    [ -z "$tiny" ] || size=(--width 64 --layers 1 --vocabulary 2000 --fields 5 --rounds 1 --steps 1)
    job speed "$python" experiments/search/forms.py speed --device "$device" "${size[@]}" --seconds $((seconds - 15))
    finish
    grep '^{' "$run/logs/speed.txt" | tail -n 1 | tee "$run/rows/speed-forms.jsonl"
}

table7() {
    local more=() size=full
    [ -z "$tiny" ] || { more=(--scale 0.03) size=tiny; }
    [ -e "$run/mdlm-$size/config.json" ] || "$python" -m unmask fabricate mdlm "$run/mdlm-$size" --size "$size" >/dev/null
    job table7 "$python" experiments/table7.py "$run/mdlm-$size" "$run/rows/table7.jsonl" --device "$device" \
        "${half[@]}" "${more[@]}" --seconds $((seconds - 25))
    finish
    cat "$run/logs/table7.txt"
}

runtime() {
    local more=()
    [ -z "$tiny" ] || more=(--scale 0.1)
    job runtime "$python" -m unmask paper runtime --on text --device "$device" --out "$run/rows/runtime" --no-pictures "${more[@]}"
    finish
    grep '^|' "$run/logs/runtime.txt"
}

# --- rows ------------------------------------------------------------------------------------------------------------

paper() {
    local more=("${half[@]}")
    [ -z "$tiny" ] || more=(--at-most 2 --scale 0.05)
    # shellcheck disable=SC2086 # several words
    "$python" experiments/paper_cells.py "$run/paper" --device "$device" "${more[@]}" --processes "${PROCESSES:-8}" \
        --limit $((seconds - 15)) --pack "$out" ${ONLY:+--only $ONLY} | tee "$run/logs/paper.txt" | grep -v "^ .* s  .*: .*evaluations in"
}

rewarding() { start_rewarding && finish; tail_rewarding; }
start_rewarding() {
    local n=1000 cell count=0 cells=()
    [ -z "$tiny" ] || n=2
    for cell in {sudoku28,sudoku24,countdown4,countdown5}-{uniform,confidence,entropy} sudoku24-eb countdown4-eb; do
        cells[count % 7]+=" $cell"
        count=$((count + 1))
    done
    mkdir -p "$run/rows/study"
    questions "$n" # once: several processes share the files
    for count in "${!cells[@]}"; do
        # shellcheck disable=SC2086 # several words
        job "rewarding-$count" "$python" experiments/search/study.py run "$run/rows/study" --side held --device "$device" \
            "${half[@]}" -n "$n" --methods self-rewarding --cells ${cells[count]}
    done
}
questions() { # puzzles of a task and level in a process each
    "$python" - "$run/rows/study" "$1" <<'PYTHON'
import sys
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, "experiments/search")
from methods import CELLS
from study import questions

of = {(cell.task, cell.level): cell for cell in CELLS.values() if cell.task != "text"}
with get_context("fork").Pool(len(of)) as pool:
    pool.starmap(questions, [(Path(sys.argv[1]), cell, "held", int(sys.argv[2])) for cell in of.values()])
PYTHON
}
tail_rewarding() {
    "$python" - "$run/rows/study" <<'PYTHON'
import json
import sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("held-*-self-rewarding.jsonl")):
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "number" in row]
    if rows:
        solved = sum(row["right"][row["chosen"]] for row in rows)
        print(f"{path.stem}: {solved} of {len(rows)} = {100 * solved / len(rows):.1f} %")
PYTHON
}

small() { start_small && finish; tail_small; }
start_small() { # both forms, with and without; then what theory.md and kernel-text.md lack
    local n=1000 texts=128 k=8 rows=$run/rows
    [ -z "$tiny" ] || n=2 texts=2 k=2
    make() { # file command...
        [ -s "$1" ] || "${@:2}" -o "$1"
    }
    make "$rows/countdown.jsonl" "$python" -m unmask puzzles countdown --count "$n" --seed 7
    make "$rows/problems.jsonl" "$python" -m unmask puzzles problems --form plain --count "$n" --seed 7
    make "$rows/boards.txt" "$python" -m unmask puzzles sudoku --clues 28 --answers --count "$((n / 2 + 1))" --seed 77
    job forms-countdown bash -c "$(declare -f graded)"'; graded "$@"' bash countdown "$device" "$rows" 2048 \
        "fast --sampler fast-dllm --threshold 0.5" "eb --sampler eb --temperature 1 --search best-of-n --particles $k"
    job forms-problems bash -c "$(declare -f graded)"'; graded "$@"' bash problems "$device" "$rows" 128 \
        "block --sampler fast-dllm --attention block" "eb --sampler eb --temperature 1 --search best-of-n --particles $k"
    job interval-sudoku "$python" experiments/interval.py "$rows/boards.txt" --model sudoku --device "$device" --limit "$((n / 2 + 1))" \
        --steps 27 --particles 8 --every 2 4 8 16 --strength 0 5 100 --seconds $(($(left) - 30)) -o "$rows/interval-sudoku.jsonl"
    job theory bash -c 'set -e
        python=$1 device=$2 rows=$3 texts=$4; shift 4
        if [ ! -s "$rows/stories.jsonl" ]; then
            "$python" -m unmask generate "Once upon a time" --n "$texts" --seed 900 --device "$device" --json ${TINY:+--length 9} |
                "$python" -c "import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({\"text\": row[\"prompt\"] + row[\"text\"]}))" >"$rows/stories.jsonl"
        fi
        "$python" experiments/float32_noise.py "$rows/stories.jsonl" --limit 64 --device "$device" --steps 16 32 64 128 256 512 1024 |
            tee "$rows/noise-steps.txt"
        "$python" experiments/interval.py "$rows/stories.jsonl" --model text --device "$device" --limit "$texts" --steps 64 \
            --particles 8 --every 4 16 --strength 0 5 100 --seconds "$1" -o "$rows/interval-text.jsonl"' \
        bash "$python" "$device" "$rows" "$texts" $(($(left) - 60))
}
graded() { # task device rows batch "name flags"...: each with the form of answers and without, one after another
    local task=$1 device=$2 rows=$3 batch=$4 how name flags form bad=0
    shift 4
    for how in "$@"; do
        read -r name flags <<<"$how"
        for form in "" --constrained; do
            # shellcheck disable=SC2086 # several words
            "$PYTHON" -m unmask eval "$task" --data "$rows/$task.jsonl" --recipe none --device "$device" --batch "$batch" $flags $form \
                --rows "$rows/form-$task-$name$form.jsonl" || bad=1
        done
    done
    return $bad
}
tail_small() {
    local name form
    for name in countdown-fast countdown-eb problems-block problems-eb; do
        form=$run/rows/form-$name
        [ -s "$form.jsonl" ] && [ -s "$form--constrained.jsonl" ] || continue
        echo "$name: without, then with the form"
        "$python" -m unmask compare "$form.jsonl" "$form--constrained.jsonl" || true
    done
    cat "$run/logs/interval-sudoku.txt" "$run/rows/noise-steps.txt"
    grep λ= "$run/logs/theory.txt"
}

random() { start_random && finish; tail_random; }
start_random() {
    local patterns=1000 cases=210
    [ -z "$tiny" ] || patterns=2 cases=20
    job random "$python" experiments/search/forms.py random --patterns "$patterns" --cases "$cases" --seed 2 --jobs "${JOBS:-16}" \
        --seconds $((seconds - 20)) --rows "$run/rows/forms-random.jsonl"
}
tail_random() { tail -n 1 "$run/logs/random.txt"; }

# --- several ---------------------------------------------------------------------------------------------------------

timed() {
    local bad=0 whole=$seconds name
    seconds=$((whole / 3))
    for name in speed table7 runtime; do
        began=$SECONDS
        "$name" || bad=1
    done
    return $bad
}

beside() {
    local bad=0
    start_random
    start_small
    start_rewarding
    finish || bad=1
    tail_random
    tail_small
    tail_rewarding
    return $bad
}

unpack() {
    [ ! -e "$out/rest.tar.xz" ] || tar xJf "$out/rest.tar.xz" -C "$run"
    mkdir -p "$run/paper"
    ! ls "$out"/paper.part-* >/dev/null 2>&1 || cat "$out"/paper.part-* | tar xJ -C "$run/paper"
}

case $stage in
speed | table7 | runtime | rewarding | small | random | paper | timed | beside | unpack)
    "$python" -c 'from unmask.evaluate.header import commit; print(f"commit {commit()}")' || exit 1
    code=0
    "$stage" || code=$?
    [ "$stage" = unpack ] || pack
    echo "$stage: $((SECONDS - began)) s, status $code"
    exit $code
    ;;
*) echo "gpu_rest: there is no stage $stage" >&2 && exit 2 ;;
esac
