#!/usr/bin/env bash
# What does it cost to learn both attentions in one network? Five trainings side by side on one GPU.
# usage: mixture.sh DIR SHARDS STEPS    SHARDS: a directory with shards of stories, as that of `unmask train text`;
#                                       the network of both gets twice the steps. DEVICE=cpu BATCH=4 are for a trial
#
# full, block: one attention alone. both: every second step each, so that each gets as many steps as alone.
# small-full, small-block: the same with half the weights, which is what two networks of the same size together would be.
# Read the last validation of each log: story_full, story_block, answer_full and answer_block are NELBOs in nats a token.
set -euo pipefail
dir=$1 shards=$2 steps=$3
device=${DEVICE:-cuda} batch=${BATCH:-256} held=${HELD:-256}
big=${BIG:-'{"width":256,"heads":4,"layers":6,"inner":640}'} small=${SMALL:-'{"width":192,"heads":3,"layers":5,"inner":480}'}
[ -e "$shards/stories-00000.npy" ] || { echo "mixture: there are no stories in $shards" >&2 && exit 1; }
mkdir -p "$dir"
export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-3} # five of them compile at once
arm() { # name steps mixture shape
    ${PYTHON:-python3} -m unmask train text "$dir/$1" --stories "$shards" --device "$device" --batch "$batch" --check 10000 --log 100 \
        --held "$held" --workers 1 --steps "$2" --mixture "$3" --shape "$4" >"$dir/$1.txt" 2>&1 ||
        { echo "mixture: $1 failed: $(tail -n 1 "$dir/$1.txt")" >&2 && touch "$dir/failed"; }
}
rm -f "$dir/failed" "$dir/done"
arm full "$steps" 0 "$big" &
arm block "$steps" 1 "$big" &
arm both $((2 * steps)) 0.5 "$big" &
arm small-full "$steps" 0 "$small" &
arm small-block "$steps" 1 "$small" &
wait
for name in full block both small-full small-block; do
    echo "$name $(grep '"validation"' "$dir/$name/log.jsonl" | tail -n 1)"
done | tee "$dir/results.txt"
[ ! -e "$dir/failed" ] && touch "$dir/done"
