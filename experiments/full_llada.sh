#!/usr/bin/env bash
# A checkpoint of LLaDA's real size (random weights, 16 GB, six shards): write, check, load and decode it on a GPU.
# usage: full_llada.sh DIR LOG    DIR needs 17 GB
set -euo pipefail
dir=$1 log=$2
unmask() { echo "\$ unmask $*"; /usr/bin/env time -f '%e s, %M KiB of host memory at most' python3 -m unmask "$@"; }
{
    date -u +%Y-%m-%d
    python3 -c 'import torch; print("torch", torch.__version__, "on", torch.cuda.get_device_name())'
    [ -e "$dir" ] || unmask fabricate llada "$dir" --size full
    unmask check "$dir" --device cuda
    unmask generate "Natalia sold clips to 48 of her friends. How many clips did she sell?" --chat --model "$dir" \
        --device cuda --length 256 --sampler confidence --steps 256 --select-temperature 0.1 \
        --search smc --particles 5 --strength 5 --every 64
    unmask generate "Natalia sold clips to 48 of her friends. How many clips did she sell?" --chat --model "$dir" \
        --device cuda --length 256 --sampler semi-ar --block-length 32 --steps 256 --select-temperature 0.1 \
        --search smc --particles 5 --strength 5 --every 64 --cache-block 32
} 2>&1 | tee "$log"
