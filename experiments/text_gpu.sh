#!/usr/bin/env bash
# The bundled language model, trained further on a GPU and measured there. Run from the root of a checkout: `merge` puts
# the new weights into it. Every stage makes its directories and can be repeated.
#
#   text_gpu.sh begin RUN SECONDS SOURCE   trains in the background, from the bundled weights; a RUN that is there resumes
#   text_gpu.sh watch RUN SECONDS          waits for it; exit status 0: done, 75: still training after SECONDS
#   text_gpu.sh stop RUN                   Ctrl-C: state and model are saved
#   text_gpu.sh mixture RUN STEPS          the two attentions at small scale, in the background, on the training's stories
#   text_gpu.sh merge RUN OUT              8 bits: into this checkout, and in parts of 12 MB into OUT
#   text_gpu.sh measure RUN OUT SECONDS    problems, stories, ends; several processes at once. Rows come into OUT all along.
#   text_gpu.sh pack RUN OUT               all rows and logs once more
#
# For a trial on a CPU: DEVICE=cpu TINY=1.
set -euo pipefail
stage=$1 run=$2
device=${DEVICE:-cuda} tiny=${TINY:-}
export PYTHONUNBUFFERED=1 # logs are read while they grow
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTHON=${PYTHON:-python3}
python=$PYTHON
bundled=src/unmask/models/weights/text
mkdir -p "$run/logs" "$run/rows"

fail() { echo "text_gpu: $stage: $*" >&2 && exit 1; }

alive() { # a process that was not yet waited for counts as ended
    [ -e "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat"
}

background() { # name command...: outlives this call; Ctrl-C works, which the shell would have it ignore
    local name=$1
    shift
    setsid "$python" -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])' \
        "$@" >"$run/logs/$name.txt" 2>&1 </dev/null &
    echo $! >"$run/$name.pid"
}

# --- training --------------------------------------------------------------------------------------------------------

begin() { # seconds source
    local seconds=$1 source=$2 more=(--batch 512 --workers 6 --log 100) from=(--weights text)
    [ -s "$source" ] || fail "there is no $source"
    [ -z "$tiny" ] || more=(--batch 4 --held 2 --log 1)
    [ ! -e "$run/train/state.safetensors" ] || from=() # resumed
    [ "${WARM:-$device}" = cpu ] || [ ${#from[@]} = 0 ] || warm
    background train "$python" -m unmask train text "$run/train" "${from[@]}" --stories "$source" --seconds "$seconds" \
        --device "$device" --rate "${RATE:-0.003}" --seed 1 --check "${CHECK:-300}" "${more[@]}"
    echo "training since $(date +%T), process $(cat "$run/train.pid")"
}

warm() { # compiles the block-causal step in a process of its own, while the training waits for its first stories
    cat >"$run/warm.py" <<'PYTHON'
import hashlib, json, sys
from pathlib import Path
import numpy as np
from unmask.cli import main
from unmask.train.documents import BUNDLED
from unmask.train.words import read_words

if __name__ == "__main__":
    folder, device, batch = Path(sys.argv[1]), *sys.argv[2:]
    stories = folder / "stories"
    stories.mkdir(parents=True, exist_ok=True)
    text = read_words(BUNDLED, 4096).to_str()
    (stories / "tokenizer.json").write_text(text, encoding="utf-8")
    (stories / "shards.json").write_text(json.dumps({"tokenizer": hashlib.sha256(text.encode()).hexdigest()}))
    for kind in ("stories", "held"):
        np.save(stories / f"{kind}-00000.npy", np.full((16, 256), 5, dtype=np.uint16))
    given = ["--weights", "text", "--stories", str(stories), "--device", device, "--batch", batch]
    sys.exit(main(["train", "text", str(folder / "made"), *given, "--mixture", "1", "--steps", "1", "--held", "1"]))
PYTHON
    background warm "$python" "$run/warm.py" "$run/warm" "$device" "${BATCH:-512}"
}

watch() { # seconds
    local end=$((SECONDS + $1)) said=$SECONDS pid
    pid=$(cat "$run/train.pid")
    while alive "$pid"; do
        if [ "$SECONDS" -ge "$end" ]; then
            tail -n 1 "$run/train/log.jsonl" || true
            return 75
        fi
        if [ $((SECONDS - said)) -ge 60 ]; then
            said=$SECONDS
            tail -n 1 "$run/train/log.jsonl" 2>/dev/null || tail -n 1 "$run/logs/train.txt"
        fi
        sleep 1
    done
    grep -q "load it as a model" "$run/logs/train.txt" || fail "the training failed: $(tail -n 5 "$run/logs/train.txt")"
    grep '"validation"' "$run/train/log.jsonl" | tail -n 1
}

stop() {
    local pid
    pid=$(cat "$run/train.pid")
    ! alive "$pid" || kill -INT "$pid"
    for _ in $(seq 60); do alive "$pid" || return 0; sleep 1; done
    fail "process $pid does not end"
}

mixture() { # steps
    for _ in $(seq 180); do [ -e "$run/train/stories-00002.npy" ] || [ -n "$tiny" ] && break; sleep 1; done
    rm -rf "$run/mixture" && mkdir -p "$run/mixture"
    background mixture bash experiments/mixture.sh "$run/mixture" "$run/train" "$1"
}

merge() { # out
    local out=$1
    mkdir -p "$out"
    [ -e "$run/train/model.safetensors" ] || fail "there is no model in $run/train"
    [ -e "$run/text-old" ] || cp -r "$bundled" "$run/text-old"
    rm -rf "$run/text-8"
    "$python" -m unmask merge "$run/train" --out "$run/text-8" --bits 8 --group 192
    cmp "$run/text-8/tokenizer.json" "$bundled/tokenizer.json" || fail "the tokenizer is another one"
    cp "$run/text-8/model.safetensors" "$run/text-8/config.json" "$bundled/"
    split -b 12M "$run/text-8/model.safetensors" "$out/model.part-"
    cp "$run/train/log.jsonl" "$out/log.jsonl"
    sha256sum "$run/text-8/model.safetensors"
}

# --- measuring -------------------------------------------------------------------------------------------------------

declare -A jobs=()
job() { # name command...
    local name=$1
    shift
    (
        began=$SECONDS
        timeout -k 10 "$limit" "$@" >"$run/logs/$name.txt" 2>&1 ||
            { echo "text_gpu: $name failed with $? after $((SECONDS - began)) s: $(tail -n 2 "$run/logs/$name.txt")" >&2 && exit 1; }
        echo "$name: $((SECONDS - began)) s"
    ) &
    jobs[$name]=$!
}

finish() { # out: rows come out all along; wait for all jobs, and fail if one of them did
    local out=$1 packer bad=0 name
    (while sleep 45; do pack "$out" 1 >/dev/null 2>&1; done) &
    packer=$!
    for name in "${!jobs[@]}"; do wait "${jobs[$name]}" || bad=1; done
    kill "$packer" 2>/dev/null && wait "$packer" 2>/dev/null || true
    pack "$out"
    return $bad
}

measure() { # out seconds
    local out=$1 n=512 some=256 few=64 stories=128 dtype=(--dtype bfloat16) compile=(--compile) language=experiments/language.py
    limit=$2
    [ -z "$tiny" ] || { n=2 some=2 few=2 stories=2 compile=() dtype=(); }
    mkdir -p "$out"
    local how=("$python" "$language" decode) with=(--device "$device" "${dtype[@]}" --n "$n" --limit $((limit - 30)))
    [ -z "$tiny" ] || tiny_sets
    job losses "$python" "$language" losses "$run/rows/losses.jsonl" --shards "$run/train" --device "$device" --held "$n" \
        --models "$run/text-old" "$run/text-8"
    job stories "${how[@]}" "$run/rows/language-stories.jsonl" "${with[@]}" --sets "stories block T 0.9" \
        "stories block T 0.8" "stories block T 1" "stories block, ends not late" "stories block uniform T 1"
    job uniform "${how[@]}" "$run/rows/language-uniform.jsonl" "${with[@]}" "${compile[@]}" --rows 512 --sets \
        "stories uniform 64" "stories uniform 128" "stories uniform 256" \
        "stories uniform 64, skip_tail" "stories uniform 128, skip_tail" "stories uniform 256, skip_tail"
    job single "${how[@]}" "$run/rows/language-single.jsonl" "${with[@]}" --sets "problems block" "problems semi-ar 32" \
        "problems semi-ar 16" "problems confidence, ends late" "problems confidence" "problems uniform" "any form block" \
        "any form semi-ar 32"
    job eight-blocks "${how[@]}" "$run/rows/language-eight-blocks.jsonl" "${with[@]}" --sets "problems block T 0.7 x 8" \
        "problems semi-ar 32 T 0.7 x 8"
    job eight-whole "${how[@]}" "$run/rows/language-eight-whole.jsonl" "${with[@]}" --sets "problems uniform T 1 x 8" \
        "problems confidence T 0.7 x 8"
    "$python" -m unmask puzzles problems --form plain --count 500 --seed 2 -o "$run/rows/ends-problems.jsonl"
    local ends=("$python" experiments/ends.py run) about=(--problems "$run/rows/ends-problems.jsonl" --device "$device")
    about+=(--seconds $((limit - 30)) "${dtype[@]}")
    job ends "${ends[@]}" "$run/rows/ends.jsonl" "${about[@]}" --n "$some" --stories "$stories" \
        --only "problems: " "stories: " ${ends_length[@]+"${ends_length[@]}"}
    job ends-eight "${ends[@]}" "$run/rows/ends-eight.jsonl" "${about[@]}" --n "$few" --only "8 paths" \
        ${ends_length[@]+"${ends_length[@]}"}
    finish "$out"
}

tiny_sets() { # a trial: short texts, wrapped around the two scripts
    language=$run/tiny_language.py
    cat >"$language" <<'PYTHON'
import sys

sys.path.insert(0, "experiments")
import language

language.LENGTH = 8
language.SETS = {
    name: (kind, how | ({"length": 8, "steps": 4} if "steps" in how else {"length": 8}))
    for name, (kind, how) in language.SETS.items()
}
from unmask.train import documents

documents.SOLVED = 2
language.main()
PYTHON
    how=("$python" "$language" decode)
    ends_length=(--length 8 --story-length 8)
}

pack() { # out [quick]: rows and logs, in files of at most 15 MB
    local out=$1 new="$run/rows.$BASHPID.tar.xz" level=6
    [ $# -lt 2 ] || level=0
    mkdir -p "$out"
    (cd "$run" && tar cf - --warning=no-file-changed rows logs train/log.jsonl train/loss.svg train/held-0000[012].npy \
        mixture/*.txt mixture/*/log.jsonl 2>/dev/null || true) | xz -T 4 -"$level" >"$new"
    rm -f "$out"/rows.part-*
    split -b 15M "$new" "$out/rows.part-"
    rm -f "$new"
    ls -l "$out"
}

shift 2
case $stage in
begin | watch | stop | mixture | merge | measure | pack) "$stage" "$@" ;;
*) fail "there is no such stage" ;;
esac
