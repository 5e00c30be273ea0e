"""What stands in for CUDA graphs on a CPU: operations are written down, and done again on the same tensors.

As on a GPU, a recording is of tensors and fixed numbers alone. It is an error if the host reads while it is made, and
what Python computes is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from unmask.core.gpu import recorded
from unmask.core.gpu.parted import Pauses
from unmask.core.state import tensors

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.is_nonzero.default}


class Tape(TorchDispatchMode):
    """One recording."""

    now: Tape | None = None

    def __init__(self) -> None:
        super().__init__()
        self.again: list[Callable[[], None]] = []

    def begin(self) -> None:
        assert Tape.now is None
        Tape.now = self
        self.__enter__()

    def end(self) -> None:
        Tape.now = None
        self.__exit__(None, None, None)

    def replay(self) -> None:
        assert Tape.now is None
        for one in self.again:
            one()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in READS, f"{func} makes the host wait"
        found = func(*args, **(kwargs or {}))
        same = func._schema.is_mutable or any(one.alias_info is not None for one in func._schema.returns)
        self.write(lambda: func(*args, **(kwargs or {})), () if same else _flat(found))
        return found

    def write(self, work: Callable[[], Any], old: Any) -> None:
        def again() -> None:
            new = work()
            for here, there in zip(_flat(new), old, strict=True) if old else ():
                there.copy_(here)

        self.again.append(again)


def _all(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(tensors(found))


def _flat(found: Any) -> tuple[Tensor, ...]:
    if isinstance(found, Tensor):
        return (found,)
    return tuple(one for part in found for one in _flat(part)) if isinstance(found, tuple | list) else ()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a recording has as one operation, as it has the kernels of a GPU."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if Tape.now is None:
            return function(*args, **kwargs)

        def work() -> tuple[Tensor, ...]:
            return _all(function(*args, **kwargs))

        with _disable_current_modes():
            found = function(*args, **kwargs)
        Tape.now.write(work, _all(found))
        return found

    return run


class Device:
    """In place of `parted.Device`."""

    def aside(self) -> Any:
        return nullcontext()

    @contextmanager
    def recording(self) -> Iterator[None]:
        yield

    def graph(self) -> Tape:
        return Tape()


class Paused(recorded.Paused):
    """While a GPU records, nothing is computed: the loop is as before."""

    def __init__(self, step: Any, loop: recorded.Loop, pauses: Pauses) -> None:
        before = [one.clone() for one in tensors(loop)]
        super().__init__(step, loop, pauses)
        for one, old in zip(tensors(loop), before, strict=True):
            one.copy_(old)
