#!/usr/bin/env bash
# What a step with a cache costs on a GPU, beside its floor and public loops with a cache, and without one uncompiled;
# comments say what is aimed at. What fails or lasts too long is told, and the next run begins.
# usage: [ONLY="llada sdar"] [LIMIT=150] [PARTICLES=1,8] [REPEAT=1] speed_blocks.sh DIR LOG
# DIR is for the JSON and the plots; PARTICLES and REPEAT are those of `sdar`, and REPEAT that of `llada-exact` too.
# For a trial on a CPU: DEVICE=cpu TINY=1 ONLY=llada.
set -uo pipefail
dir=$1 log=$2 device=${DEVICE:-cuda} python=${PYTHON:-python3}
mkdir -p "$dir"
speed() {
    local name=$1
    shift
    [[ -z "${ONLY:-}" || " $ONLY " == *" $name "* ]] || return 0
    echo "\$ unmask bench speed --device $device $*"
    timeout "${LIMIT:-150}" "$python" -m unmask bench speed --device "$device" "$@" --json >"$dir/$name.json" || {
        [ $? = 124 ] && echo "  ended after its time, ${LIMIT:-150} seconds" || echo "  failed"
        rm -f "$dir/$name.json"
        return 0
    }
    "$python" - "$dir/$name.json" <<'PYTHON'
import json, sys
found = json.load(open(sys.argv[1]))
points = found.get("sweep", {}).get("particles", [found])
for row in points:
    cached = row["cached"]
    print(f"  {row['particles']} particles: step {row['step_ms']:.2f} ms, {row['ratio_to_floor']:.3f} of the floor "
          f"({row['backbone']} {row['floor_ms']:.2f} ms), "
          f"{row['step_ms'] / points[0]['step_ms']:.2f} of {points[0]['particles']} particles, "
          f"{row['tokens_per_second']:.0f} tokens a second, peak {row['peak_mib'] or 0:.0f} MiB, "
          f"first decode {row['start_seconds']:.1f} s to its third step")
    if cached is not None:
        for figure in ("public_cached_ms", "public_cached_row_ms"):
            if cached[figure] is not None:
                print(f"    {figure} {cached[figure]:.2f}")
        print(f"    inner {cached['inner_ms']:.2f} ms, refresh {cached['refresh_ms']:.2f} ms in {cached['refresh_share']:.1%}")
        print(f"    kept {cached['kept']}")
    if row["against_ms"] is not None:
        print(f"    {row['against_ms'] / row['step_ms']:.2f} times faster than without a cache")
    print(f"    ways {row['backbones_ms']} head {row['head_ms']:.2f} notes {row['notes']}")
PYTHON
}
at="--size llada --prompt 256 --length 256 --block-length 32"
[ -z "${TINY:-}" ] || at="--size tiny --prompt 8 --length 64 --block-length 16 --no-compile"
sdar="--size sdar" exact="--size llada --steps 64 --uncompiled" prompt=2048
[ -z "${TINY:-}" ] || { sdar="--size tiny-sdar" exact="--size tiny --steps 4 --no-compile" prompt=16; }
window="$at --sampler semi-ar --scope block --cache --cache-before 0 --cache-after 0 --uncompiled"
{
    date -u +%Y-%m-%d
    "$python" -c 'import torch; print("torch", torch.__version__, "on", torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU")'
    # LLaDA's size, 256 + 256, blocks of 32, dual cache: 8 particles at most 1.10 of the floor, at most 2 times the step of
    # one, at least 8 times faster than without a cache, and faster than public_cached_row_ms
    speed llada $window --particles 8 --against exact --repeat 1 --sweep particles=1,8
    # exact and uncompiled: at most 1.10 of the compiled floor
    speed llada-exact $exact --sampler confidence --particles 5 --repeat "${REPEAT:-2}" --sweep particles=1,5
    # SDAR's size, blocks of 4, exact: 8 particles at most 1.25 times the step of one
    speed sdar $sdar --particles 8 --repeat "${REPEAT:-2}" --no-compile --sweep "particles=${PARTICLES:-1,2,4,8,16}" \
        --plot "$dir/sdar.svg"
    # a prompt of 2,048 positions is kept once
    speed prompt $sdar --prompt "$prompt" --length 64 --particles 8 --repeat 1 --no-compile
    speed llada-particles $window --particles 8 --repeat 1 --no-compile --sweep particles=1,2,4,8,16 --plot "$dir/llada.svg"
    speed fast-dllm-v2 --size fast-dllm-v2 --particles 8 --repeat 1 --no-compile --sweep particles=1,8
    speed llada2 --size llada2 --particles 8 --repeat 1 --no-compile --sweep particles=1,8
    speed sdar-floor --size sdar --particles 8 --length 128 --repeat 2
} 2>&1 | tee "$log"
