"""Does path entropy know how good a text is? Unconditional samples, judged by an AR model.

It was written for the former text model, of prose: ends of text are never drawn, and samples fill their canvas. For
stories that end, `unmask paper quality --on text` and `experiments/story_quality.py` take its place.

    python experiments/text_entropy.py sample runs/samples.jsonl --device cuda
    python experiments/text_entropy.py judge runs/samples.jsonl --judge DIR --device cuda > runs/text_entropy.json

`sample` walks groups of 8 paths, random order at temperature 1, for each number of steps; each path is one sample, and
the path of least entropy in its group is what best-of-n would have chosen. `judge` takes any causal model that
`unmask judge` takes (without one, its default; with --gguf FILE that file of DIR) and prints, for each number of steps:
the correlation of path entropy with ln PPL and the most that it could be (a sample has few tokens, so its ln PPL is
noisy; how noisy, its even and odd tokens say), both means of ln PPL (all samples; the chosen of each group) and of
diversity (entropy of the tokens of a sample, in nats), with 95 % bootstrap intervals over groups.

The *own loss* of a sample is the NELBO that the generating model (--model) has for it, in nats a token: what the model
itself thinks of the finished text, on average over all ways to it. Its correlation with ln PPL says how much any
measure inside this model could know about the judge's opinion. It is estimated twice, at 4 stratified times each for
every one of --draws; how the two agree gives the most that it could correlate with anything (own_loss_ceiling).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

import unmask
from unmask.decoding.recipe import Recipe
from unmask.evaluate.judge import (
    DEFAULT,
    Rules,
    bootstrap,
    ceiling,
    judged,
    load_judge,
    pearson,
    read_samples,
    spearman,
)
from unmask.train.prose import nelbo


def sample(args: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU
    model = unmask.load(args.model, args.device)
    end = model.vocab.eos
    with open(args.file, "w", encoding="utf-8") as file:
        for steps in args.steps:
            recipe = Recipe("uniform", temperature=1.0, steps=steps, length=args.length, ban=end)
            recipe = recipe.replace(search="best-of-n", particles=8)
            began = time.perf_counter()
            for begin in range(0, args.groups, args.together):
                seeds = range(begin, min(args.groups, begin + args.together))
                for found in unmask.decode_batch(model, [""] * len(seeds), recipe=recipe, seeds=seeds):
                    for place, particle in enumerate(found.particles):
                        row = {"steps": steps, "seed": found.seed, "particle": place, "chosen": place == found.chosen}
                        row |= {"path_entropy": particle.path_entropy, "tokens": particle.tokens}
                        file.write(json.dumps(row | {"text": particle.text}) + "\n")
            print(f"{steps} steps: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def judge(args: argparse.Namespace) -> None:
    rows = judge_rows(args)
    kinds = sorted({row["steps"] for row in rows})
    found = {"judge": args.judge, "model": args.model, "rows": len(rows), "date": time.strftime("%Y-%m-%d")}
    print(json.dumps({**found, "results": [figures([r for r in rows if r["steps"] == steps]) for steps in kinds]}))
    if args.rows:
        with open(args.rows, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def judge_rows(args: argparse.Namespace) -> list[dict]:
    """The judge's rows, with the own loss. With --rows, both are kept beside that file and taken up again."""
    samples = read_samples([args.file])
    name = args.judge if args.gguf is None else str(Path(args.judge) / args.gguf)
    kept = None if args.rows is None else f"{args.rows}.part"
    rules = Rules("both" if args.mdlm else "sample", budget=args.budget)
    rows = judged(load_judge(name, args.device), samples, rules, kept, partial(tell, "judged", len(samples)))
    if args.draws:
        each = own_losses(args, [sample.tokens for sample in samples])
        rows = [
            row | {"own_loss": float(mean.mean()), "own": mean.tolist()} for row, mean in zip(rows, each, strict=True)
        ]
    return rows


def own_losses(args: argparse.Namespace, tokens: list[list[int]]) -> np.ndarray:  # [rows, 2]
    """The generating model's NELBO of each finished sample, nats a token; two estimates, to say how noisy one is."""
    network = unmask.load(args.model, args.device).network
    found = np.zeros((len(tokens), 2))
    for length in sorted({len(row) for row in tokens}):
        places = [place for place, row in enumerate(tokens) if len(row) == length]
        same = np.array([tokens[place] for place in places])
        for seed in range(2 * args.draws):
            kept = Path(f"{args.rows}.{Path(args.model).name}-{length}-{seed}.npy")
            if args.rows and kept.exists() and len(np.load(kept)) == len(same):
                nats = np.load(kept)
            else:
                nats = nelbo(network, same, seed, partial(tell, f"own loss {seed + 1} of {2 * args.draws}", len(same)))
                if args.rows:
                    np.save(kept, nats)
            found[places, seed % 2] += nats / length / args.draws
    return found


def tell(what: str, of: int, done: int) -> None:
    print(f"{what}: {done} of {of}", file=sys.stderr, end="\r", flush=True)


def figures(rows: list[dict]) -> dict:
    """All figures of one number of steps, each as [value, low, high]."""
    fields = ["path_entropy", "ln_ppl", "even", "odd", "diversity", "nats", "judge_tokens"]
    table = {name: np.array([row[name] for row in rows], dtype=float) for name in fields}
    chosen = np.array([row["chosen"] for row in rows])
    own = np.array([row["own"] for row in rows]) if "own" in rows[0] else None  # [rows, 2]
    groups = [row["seed"] for row in rows]
    assert chosen.sum() == len(set(groups))

    def measured(pick: np.ndarray) -> dict[str, float]:
        entropy, quality, even, odd, kinds, nats, tokens = (table[name][pick] for name in fields)
        one = chosen[pick]
        found = {
            "correlation": pearson(entropy, quality),
            "spearman": spearman(entropy, quality),
            "ceiling": ceiling(even, odd),
            "ln_ppl": float(quality.mean()),
            "ln_ppl_chosen": float(quality[one].mean()),
            "ln_ppl_gain": float(quality.mean() - quality[one].mean()),
            "ppl": math.exp(nats.sum() / tokens.sum()),
            "diversity": float(kinds.mean()),
            "diversity_chosen": float(kinds[one].mean()),
            "path_entropy": float(entropy.mean()),
            "path_entropy_sd": float(entropy.std()),
        }
        if own is not None:
            loss = own[pick].mean(1)
            found |= {
                "own_loss": float(loss.mean()),
                "own_loss_ln_ppl": pearson(loss, quality),
                "own_loss_path_entropy": pearson(loss, entropy),
                "own_loss_ceiling": ceiling(own[pick, 0], own[pick, 1]),
            }
        return found

    ends = bootstrap(measured, groups)
    rounded = {name: [None if one is None else round(one, 4) for one in figure] for name, figure in ends.items()}
    return {"steps": rows[0]["steps"], "n": len(rows), "groups": len(set(groups)), **rounded}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sample", "judge"))
    parser.add_argument("file")
    parser.add_argument("--model", default="text")
    parser.add_argument("--judge", default=DEFAULT)
    parser.add_argument("--gguf")
    parser.add_argument("--rows", help="where the judged rows go (JSONL)")
    parser.add_argument("--mdlm", action="store_true", help="MDLM's convention too, in the judged rows")
    parser.add_argument("--budget", type=int, help="tokens that the judge reads together")
    parser.add_argument("--draws", type=int, default=1, help="of 8 times each for the own loss; 0 leaves it out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--together", type=int, default=64)
    args = parser.parse_args()
    (sample if args.what == "sample" else judge)(args)


if __name__ == "__main__":
    main()
