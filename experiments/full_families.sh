#!/usr/bin/env bash
# Every family at its published size (random weights): write, check, load and decode it on a GPU.
# usage: full_families.sh DIR LOG    DIR needs 16 GB; it is emptied after each family
set -euo pipefail
dir=$1 log=$2
unmask() { echo "\$ unmask $*"; /usr/bin/env time -f '%e s, %M KiB of host memory at most' python3 -m unmask "$@"; }
{
    date -u +%Y-%m-%d
    python3 -c 'import torch; print("torch", torch.__version__, "on", torch.cuda.get_device_name())'
    for family in mdlm open-dcoder illada dream; do
        unmask fabricate "$family" "$dir/$family" --size full
        unmask check "$dir/$family" --device cuda --dtype float32
        unmask generate "Once upon a time" --model "$dir/$family" --device cuda --length 256 --sampler uniform --steps 64 \
            --temperature 1 --search smc --particles 5 --every 16
        rm -r "${dir:?}/$family"
    done
} 2>&1 | tee "$log"
