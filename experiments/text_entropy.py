"""Does path entropy know how good a text is? Unconditional samples of the text model, judged by an AR model.

    python experiments/text_entropy.py sample runs/samples.jsonl --device cuda
    python experiments/text_entropy.py judge runs/samples.jsonl --judge DIR --device cuda > runs/text_entropy.json

`sample` walks groups of 8 paths, random order at temperature 1, for each number of steps; each path is one sample, and
the path of least entropy in its group is what best-of-n would have chosen. `judge` takes any causal model that
transformers loads from DIR (with --gguf FILE from that file of it) and prints, for each number of steps: the
correlation of path entropy with ln PPL and the most that it could be (a sample has few tokens, so its ln PPL is noisy;
how noisy, its even and odd tokens say), both means of ln PPL (all samples; the chosen of each group) and of diversity
(entropy of the tokens of a sample, in nats), with 95 % bootstrap intervals over groups.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import unmask
from unmask.recipe import Recipe


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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    extra = {} if args.gguf is None else {"gguf_file": args.gguf}
    words = AutoTokenizer.from_pretrained(args.judge, **extra)
    dtype = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(args.judge, dtype=dtype, **extra).to(args.device).eval()
    rows = [json.loads(line) for line in Path(args.file).read_text(encoding="utf-8").splitlines()]
    for begin in range(0, len(rows), args.together):
        some = rows[begin : begin + args.together]
        for row, values in zip(some, log_perplexities(model, words, [row["text"] for row in some]), strict=True):
            row["ln_ppl"], row["even"], row["odd"] = values
        print(f"{begin + len(some)} of {len(rows)}", file=sys.stderr, end="\r")
    found = {"judge": args.judge, "rows": len(rows), "date": time.strftime("%Y-%m-%d")}
    print(json.dumps({**found, "results": [figures(rows, steps) for steps in sorted({r["steps"] for r in rows})]}))
    if args.rows:
        with open(args.rows, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({k: v for k, v in row.items() if k != "tokens"}) + "\n" for row in rows)


@torch.no_grad()
def log_perplexities(model, words, texts: list[str]) -> list[tuple[float, float, float]]:
    """Mean -log p of each text's tokens, a document beginning before the first one: of all, of every other one."""
    first = words.bos_token_id if words.bos_token_id is not None else words.eos_token_id
    ids = [[first, *words(text, add_special_tokens=False)["input_ids"]] for text in texts]
    longest = max(map(len, ids))
    batch = torch.tensor([row + [first] * (longest - len(row)) for row in ids], device=model.device)
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=model.device)
    logits = model(batch, attention_mask=real).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
    even = torch.arange(losses.shape[1], device=losses.device) % 2 == 0
    kinds = [real[:, 1:] * mask for mask in (torch.ones_like(even), even, ~even)]
    means = [(losses * kind).sum(1) / kind.sum(1).clamp(min=1) for kind in kinds]
    return list(zip(*(mean.tolist() for mean in means), strict=True))


def diversity(tokens: list[int]) -> float:
    counts = Counter(tokens)
    return -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())


def figures(rows: list[dict], steps: int) -> dict:
    rows = sorted((row for row in rows if row["steps"] == steps), key=lambda row: (row["seed"], row["particle"]))
    names = {"entropy": "path_entropy", "quality": "ln_ppl"}
    table = {name: np.array([row[key] for row in rows]).reshape(-1, 8) for name, key in names.items()}
    spread = np.array([diversity(row["tokens"]) for row in rows]).reshape(-1, 8)
    chosen = np.array([row["chosen"] for row in rows]).reshape(-1, 8)
    halves = [np.array([row[name] for row in rows]).reshape(-1, 8) for name in ("even", "odd")]
    assert (chosen.sum(1) == 1).all()

    def measured(pick: np.ndarray) -> dict[str, float]:
        entropy, quality, kinds, one = (a[pick] for a in (table["entropy"], table["quality"], spread, chosen))
        agree = float(np.corrcoef(*(half[pick].ravel() for half in halves))[0, 1])
        return {
            "correlation": float(np.corrcoef(entropy.ravel(), quality.ravel())[0, 1]),
            "ceiling": max(0.0, 2 * agree / (1 + agree)) ** 0.5,
            "ln_ppl": float(quality.mean()),
            "ln_ppl_chosen": float(quality[one].mean()),
            "ln_ppl_gain": float(quality.mean() - quality[one].mean()),
            "diversity": float(kinds.mean()),
            "diversity_chosen": float(kinds[one].mean()),
            "path_entropy": float(entropy.mean()),
            "path_entropy_sd": float(entropy.std()),
        }

    dice = np.random.default_rng(0)
    every = measured(np.arange(len(spread)))
    again = [measured(dice.integers(0, len(spread), len(spread))) for _ in range(1000)]
    ends = {name: np.quantile([one[name] for one in again], [0.025, 0.975]).round(4).tolist() for name in every}
    return {"steps": steps, "n": len(rows), **{name: [round(every[name], 4), *ends[name]] for name in every}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sample", "judge"))
    parser.add_argument("file")
    parser.add_argument("--model", default="text")
    parser.add_argument("--judge")
    parser.add_argument("--gguf")
    parser.add_argument("--rows", help="where the judged rows go (JSONL)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--together", type=int, default=64)
    args = parser.parse_args()
    (sample if args.what == "sample" else judge)(args)


if __name__ == "__main__":
    main()
