"""What MDLM's float32 Gumbel noise does to the law of a token, computed without drawing any.

    python experiments/float32_noise.py TEXTS --model text --limit 12
    python experiments/float32_noise.py TEXTS --model text --limit 64 --steps 128 256 512 1024 [--device cuda]

Uniform numbers of 24 bits make a weight w win with chance 2^-24 / (exp(2^-24 / w) - 1) instead of w (all weights of a
position sum to 1, the mask's among them). In a step that frees a position with chance r, the weight of a token is r p.
TEXTS is a file as `unmask theory` reads it. For noised states of its texts and several r: the share of the mass that is
never drawn, and the entropy of the law drawn from, beside the model's own. Means over texts, 95 %.

With --steps the r of a state is that of a path of N steps: where a share m of the open positions is masked, a step
frees each with chance 1 / (m N), at most 1. The shares are uniform on (0, 1), as the times of a path are, and states
count alike, so that every row is the mean over the tokens of such a path.
"""

from __future__ import annotations

import argparse

import torch

from unmask import load
from unmask.core.entropy import bits
from unmask.evaluate.stats import mean
from unmask.evaluate.theory.noised_states import _noised
from unmask.evaluate.theory.texts import read

GRID = 2.0**-24


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts")
    parser.add_argument("--model", default="text")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--draws", type=int, default=6, help="noised states of each text")
    parser.add_argument("--free", type=float, nargs="+", default=[1.0, 1 / 16, 1 / 64, 1 / 256, 1 / 1024])
    parser.add_argument("--steps", type=int, nargs="+", help="instead of --free: of whole paths")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = load(args.model, args.device)
    texts, _ = read(model, args.texts, None, args.limit)
    rules = args.steps or args.free
    lost: dict[float, list[float]] = {rule: [] for rule in rules}
    changed: dict[float, list[float]] = {rule: [] for rule in rules}
    plain: list[float] = []
    for place, text in enumerate(texts):
        state, _, _ = _noised(model, [text], [place], args.draws)
        if args.steps:  # the ends, one mask and everything masked, are no draws of the time
            state = state.take(torch.arange(1, args.draws + 1, device=model.device))
        hidden, _ = model.look(state, torch.arange(len(state.tokens), device=model.device))
        p = model.head.logits(hidden[state.masked]).double().softmax(1)  # [masked positions of all states, V]
        share = (state.masked.sum(1) / state.open)[:, None].expand_as(state.masked)[state.masked].double()
        # a step of a path frees the same number of positions at every time: states count alike, whatever they mask
        count = state.masked.sum(1)[:, None].expand_as(state.masked)[state.masked].double()
        weight = 1 / count / len(state.tokens) if args.steps else torch.full_like(count, 1 / len(count))
        plain.append(float((bits(torch.special.entr(p).sum(1)) * weight).sum()))
        for rule in rules:
            free = (1 / (share * rule)).clamp(max=1.0)[:, None] if args.steps else rule
            won = GRID / torch.expm1(GRID / (free * p)) / free  # 0 where the exponential overflows
            mass = won.sum(1)
            lost[rule].append(float(((1 - mass) * weight).sum()))
            law = won / mass[:, None]
            changed[rule].append(float((bits(torch.special.entr(law).sum(1)) * weight).sum()))
    print(f"{len(texts)} texts, {len(state.tokens)} states each, {model.head.width} tokens; entropy {mean(plain)} bits")
    for rule in rules:
        less = mean([new - old for new, old in zip(changed[rule], plain, strict=True)])
        what = f"{rule} steps" if args.steps else f"r = 1/{1 / rule:.0f}"
        print(f"{what}: mass never drawn {mean(lost[rule]).times(100)} %, entropy {less} bits")


if __name__ == "__main__":
    main()
