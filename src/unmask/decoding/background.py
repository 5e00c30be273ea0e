"""Text -> how often each token occurs: the background table of PC-Sampler, in its public JSON layout."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from unmask.errors import InputError
from unmask.models import BUNDLED, WEIGHTS, Denoiser

T = TypeVar("T")


@dataclass(frozen=True)
class Background:
    """Counts of token ids; an id without a count has the frequency of one occurrence."""

    counts: dict[int, int]
    total: int
    name: str = "the table"  # where it was read from
    model: str | None = None  # whose tokens were counted, where that is known
    width: int | None = None  # of that model's vocabulary, where that is known

    @cached_property
    def _table(self) -> Tensor:  # [largest id + 2] float32, the last entry for all unseen ids
        table = torch.full((max(self.counts, default=-1) + 2,), 1 / self.total)
        table[list(self.counts)] = torch.tensor(list(self.counts.values())).double().div(self.total).float()
        return table

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    def frequency(self, token: Tensor) -> Tensor:  # any shape, int64 -> float32
        """The background frequency of each token; the table goes to a device once."""
        if token.device not in self._copies:
            self._copies[token.device] = self._table.to(token.device)
        table = self._copies[token.device]
        return table[token.clamp(max=len(table) - 1)]

    def save(self, path: str | Path) -> None:
        """Write the public layout, `num_token` and `p_baseline_dict`, and the name of the model."""
        about = {} if self.model is None else {"model": self.model}
        counts = {str(token): n for token, n in self.counts.items()}
        text = json.dumps({"num_token": self.total, **about, "p_baseline_dict": counts})
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write the background table {str(path)!r}", str(error.strerror)) from None

    def check(self, model: Denoiser) -> None:
        """Refuse a model of another vocabulary; warn about a model of another name."""
        way_out = f"make one with `unmask frequencies TEXT --model {model.name} -o FILE`"
        if (self.width or model.head.width) != model.head.width:
            said = f"the background {self.name!r} has {self.width} tokens, {model.name} has {model.head.width}"
            raise InputError(said, f"give background {model.name}" if model.name in BUNDLED else way_out)
        if max(self.counts, default=0) >= model.head.width:
            said = f"{self.name!r} counts token {max(self.counts)}, {model.name} has {model.head.width} tokens"
            raise InputError(said, way_out)
        if self.width is None and self.model is not None and Path(self.model).name != Path(model.name).name:
            warnings.warn(f"{self.name!r} counts tokens of {self.model}, not of {model.name}", stacklevel=3)


def count(texts: Iterable[T], encode: Callable[[T], list[int]], model: str | None = None) -> Background:
    """Count the tokens that `encode` makes of texts; `model` is the one that they are of."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(encode(text))
    if not counts:
        raise InputError("the text holds no tokens", "give a file with text in it")
    return Background(dict(counts.most_common()), counts.total(), model=model)


def load(path: str | Path) -> Background:
    """Read a table written by `Background.save` or by PC-Sampler's own tool; a file is read once.

    The name of a bundled model stands for its own table.
    """
    if str(path) in BUNDLED and not Path(path).is_file():
        config = json.loads((WEIGHTS / str(path) / "config.json").read_text(encoding="utf-8"))
        found = load(WEIGHTS / str(path) / "background.json")
        return replace(found, name=str(path), model=str(path), width=config["vocabulary"])
    try:
        stamp = Path(path).stat().st_mtime_ns
    except (OSError, ValueError):  # _load says why
        stamp = 0
    return _load(str(path), stamp)


@lru_cache(maxsize=8)
def _load(path: str, stamp: int) -> Background:
    way_out = "make one with `unmask frequencies TEXT --model MODEL -o FILE`"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        counts = data.get("p_baseline_dict", data.get("token_frequency_dict"))
        found = {int(token): int(n) for token, n in counts.items()}
        model = data.get("model")
        table = Background(found, int(data["num_token"]), path, None if model is None else str(model))
    except OSError as error:
        raise InputError(f"cannot read the background table {path!r} ({error.strerror})", way_out) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise InputError(f"{path!r} is not a background table", way_out) from None
    if table.total <= 0 or any(token < 0 or n <= 0 for token, n in table.counts.items()):
        raise InputError(f"{path!r} holds a count or a token id that is not positive", way_out)
    if max([table.total, *table.counts, *table.counts.values()]) >= 2**63:
        raise InputError(f"{path!r} holds a count or a token id that is too large", way_out)
    return table
