"""Text -> how often each token occurs: the background table of PC-Sampler, in its public JSON layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import InputError
from unmask.models import EMBEDDED, WEIGHTS


@dataclass(frozen=True)
class Background:
    """Counts of token ids; an id without a count has the frequency of one occurrence."""

    counts: dict[int, int]
    total: int

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
        """Write the public layout: `num_token` and `p_baseline_dict`."""
        text = json.dumps({"num_token": self.total, "p_baseline_dict": {str(k): v for k, v in self.counts.items()}})
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write the background table {str(path)!r}", str(error.strerror)) from None


def count(texts: Iterable[str], encode: Callable[[str], list[int]]) -> Background:
    """Count the tokens of texts."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(encode(text))
    if not counts:
        raise InputError("the text holds no tokens", "give a file with text in it")
    return Background(dict(counts.most_common()), counts.total())


def load(path: str | Path) -> Background:
    """Read a table written by `Background.save` or by PC-Sampler's own tool; a file is read once.

    The name of an embedded model stands for the table that comes with it.
    """
    if str(path) in EMBEDDED and not Path(path).is_file():
        path = WEIGHTS / str(path) / "background.json"
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
        table = Background({int(token): int(n) for token, n in counts.items()}, int(data["num_token"]))
    except OSError as error:
        raise InputError(f"cannot read the background table {path!r} ({error.strerror})", way_out) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path!r} is no background table", way_out) from None
    if table.total <= 0 or any(token < 0 or n <= 0 for token, n in table.counts.items()):
        raise InputError(f"{path!r} holds a count or a token id that is not positive", way_out)
    return table
