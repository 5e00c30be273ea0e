#!/usr/bin/env bash
# What a step costs on a GPU, beside the floor and the step of public decoding loops; comments say what is aimed at.
# usage: speed.sh DIR LOG    DIR is for the JSON and the plots; about twenty minutes, most of them compiling
set -euo pipefail
dir=$1 log=$2
mkdir -p "$dir"
speed() {
    local name=$1
    shift
    echo "\$ unmask bench speed --device cuda $*"
    python3 -m unmask bench speed --device cuda "$@" --json >"$dir/$name.json"
    python3 - "$dir/$name.json" <<'PYTHON'
import json, sys
found = json.load(open(sys.argv[1]))
for name in """floor_ms step_ms ratio_to_floor public_compiled_ms public_eager_ms times_faster ratio_to_against peak_mib
        transient_mib public_transient_mib start_seconds backbone network growth notes""".split():
    if found.get(name) not in (None, []):
        print(f"  {name} {found[name]}")
PYTHON
}
{
    date -u +%Y-%m-%d
    python3 -c 'import torch; print("torch", torch.__version__, "on", torch.cuda.get_device_name())'
    # MDLM's size, 8 particles: at most 1.10 of the floor, at least 5.5 times faster, E-SMC at most 1.02 of E-BoN
    speed mdlm-8 --size mdlm --steps 128 --particles 8 --against best-of-n
    # one particle: at most 1.25 of the floor
    speed mdlm-1 --size mdlm --steps 128 --particles 1
    # LLaDA's size, 256 + 256 positions, 5 particles: at most 1.03 of the floor, at least 1.4 times faster
    speed llada-5 --size llada --prompt 256 --length 256 --steps 64 --particles 5 --repeat 2
    # 8 × 1024 masked positions of 126,464 tokens: at most 256 MiB beyond weights and activations
    speed llada-memory --size llada --prompt 0 --length 1024 --steps 4 --particles 8 --repeat 1 --no-compile
    # linear or better in particles and steps, quadratic or better in the length
    speed mdlm-particles --size mdlm --steps 32 --repeat 1 --sweep particles=1,2,4,8,16,32,64 --plot "$dir/particles.svg"
    speed mdlm-length --size mdlm --steps 32 --repeat 1 --sweep length=128,256,512,1024 --sweep steps=16,32,64,128 \
        --plot "$dir/length.svg"
} 2>&1 | tee "$log"
