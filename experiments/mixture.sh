#!/usr/bin/env bash
# What does it cost to learn both attentions in one network? Five trainings side by side on one GPU.
# usage: mixture.sh DIR STORIES STEPS    STORIES as of `unmask train text`; the network of both gets twice the steps
#
# full, block: one attention alone. both: every second step each, so that each gets as many steps as alone.
# small-full, small-block: the same with half the weights, which is what two networks of the same size together would be.
# Read the last validation of each log: story_full, story_block, answer_full and answer_block are NELBOs in nats a token.
set -euo pipefail
dir=$1 stories=$2 steps=$3
big='{"width":256,"heads":4,"layers":6,"inner":640}' small='{"width":192,"heads":3,"layers":5,"inner":480}'
arm() { # name steps mixture shape
    mkdir -p "$dir/$1" && { cp "$dir"/shards/* "$dir/$1/" 2>/dev/null || true; }
    python3 -m unmask train text "$dir/$1" --stories "$stories" --device cuda --batch 256 --check 10000 --log 200 \
        --workers 2 --steps "$2" --mixture "$3" --shape "$4" >"$dir/$1.txt" 2>&1 || tail -n 2 "$dir/$1.txt"
}
arm full "$steps" 0 "$big" &
arm block "$steps" 1 "$big" &
arm both $((2 * steps)) 0.5 "$big" &
arm small-full "$steps" 0 "$small" &
arm small-block "$steps" 1 "$small" &
wait
for name in full block both small-full small-block; do
    echo "$name $(grep validation "$dir/$name/log.jsonl" | tail -n 1)"
done
