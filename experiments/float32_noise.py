"""What MDLM's float32 Gumbel noise does to the law of a token, computed without drawing any.

    python experiments/float32_noise.py TEXTS --model text --limit 12

Uniform numbers of 24 bits make a weight w win with chance 2^-24 / (exp(2^-24 / w) - 1) instead of w (all weights of a
position sum to 1, the mask's among them). In a step that frees a position with chance r, the weight of a token is r p.
TEXTS is a file as `unmask theory` reads it. For noised states of its texts and several r: the share of the mass that is
never drawn, and the entropy of the law drawn from, beside the model's own. Means over texts, 95 %.
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
    args = parser.parse_args()
    model = load(args.model)
    texts, _ = read(model, args.texts, None, args.limit)
    lost: dict[float, list[float]] = {free: [] for free in args.free}
    changed: dict[float, list[float]] = {free: [] for free in args.free}
    plain: list[float] = []
    for place, text in enumerate(texts):
        state, _, _ = _noised(model, [text], [place], args.draws)
        hidden, _ = model.look(state, torch.arange(len(state.tokens)))
        p = model.head.logits(hidden[state.masked]).double().softmax(1)  # [masked positions of all states, V]
        plain.append(float(bits(torch.special.entr(p).sum(1)).mean()))
        for free in args.free:
            won = GRID / torch.expm1(GRID / (free * p)) / free  # 0 where the exponential overflows
            mass = won.sum(1)
            lost[free].append(float((1 - mass).mean()))
            law = won / mass[:, None]
            changed[free].append(float(bits(torch.special.entr(law).sum(1)).mean()))
    print(f"{len(texts)} texts, {args.draws + 2} states each, {model.head.width} tokens; entropy {mean(plain)} bits")
    for free in args.free:
        less = mean([new - old for new, old in zip(changed[free], plain, strict=True)])
        print(f"r = 1/{1 / free:.0f}: mass never drawn {mean(lost[free]).times(100)} %, entropy {less} bits")


if __name__ == "__main__":
    main()
