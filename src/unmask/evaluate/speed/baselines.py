"""A canvas on its way -> what a step of unmask is compared with: the floor, and the step that public loops take.

The floor is the network on every row, compiled where that helps, and one matrix product of the head with the masked
positions: what a decoder that looks at every row cannot do without. With a cache it is the network on some columns of
every row, against buffers of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.denoiser import Denoiser, Head
from unmask.core.state import State
from unmask.errors import first_line
from unmask.evaluate.speed import bare
from unmask.evaluate.speed.bare import Columns
from unmask.models import memory
from unmask.models.transformer import Transformer, can_compile

Run = Callable[[], Tensor]  # the network on all rows: hidden states [R, L, D]
Forward = Callable[..., Tensor]
EAGER, COMPILED, BY_LAYER, GRAPH = "eager", "compiled", "compiled by layer", "CUDA graph"
COUNTS = 5  # numbers of masked positions at which the head is timed
DEEP = 16  # layers from which each one is compiled by itself
COPIES = 5  # float64 numbers for each logit that the public-style step holds at a time, at most


# --- the network alone -----------------------------------------------------------------------------------------------


@dataclass
class Backbones:
    """Ways to run the same network on the same rows, and notes on them."""

    runs: dict[str, Run]
    notes: list[str] = field(default_factory=list)

    @property
    def compiled(self) -> Run | None:
        """The last that is compiled: the best of them."""
        return next((run for name, run in reversed(self.runs.items()) if COMPILED in name), None)

    @property
    def plain(self) -> list[Run]:
        """Those that allocate in every call."""
        return [run for name, run in self.runs.items() if GRAPH not in name]


def backbones(model: Denoiser, state: State, cost: int, compile: bool) -> Backbones:
    """Eager, compiled and, on a GPU, the last of them as a CUDA graph; what fails is left out, with a note.

    `cost` is how often each row goes through the network: twice under guidance.
    """
    state = state.take(torch.arange(len(state.tokens), device=model.device).repeat(cost))
    if isinstance(model, Transformer):
        return _ways(
            model, state, _forward(model), _inputs(model, state), Columns(0, (state.tokens.shape[1],)), compile
        )
    found = Backbones({EAGER: eager(model, state)})
    if compile:
        found.notes.append(f"not compiled: {model.name} is not a network of unmask")
    return _with_graph(found, model.device)


def column_backbones(model: Transformer, state: State, cost: int, columns: Columns, compile: bool) -> Backbones:
    """The same for the network on some columns of every row, against keys and values of others."""
    state = state.take(torch.arange(len(state.tokens), device=model.device).repeat(cost))
    return _ways(
        model, state, bare.forward(model.network, columns), column_inputs(model, state, columns), columns, compile
    )


def column_inputs(model: Transformer, state: State, columns: Columns) -> tuple[object, ...]:
    """Of `bare.forward`: the columns after the kept ones."""
    at = torch.arange(columns.kept, columns.kept + columns.width, device=model.device)[None]
    kept = bare.buffers(model.network, len(state.tokens), columns)
    return state.tokens[:, at[0]], at, _sigma(model, state), kept, *(model.network.waves(at) or ())


def _ways(
    model: Transformer, state: State, forward: Forward, inputs: tuple[object, ...], columns: Columns, compile: bool
) -> Backbones:
    """Deep networks are compiled layer by layer: these are alike, so the compiler runs once, and not for minutes."""
    found, deep = Backbones({EAGER: partial(forward, *inputs)}), len(model.network.blocks) >= DEEP
    if compile:
        with _noted(found, "not compiled"):
            if not can_compile(model.device):
                raise FileNotFoundError("there is no C++ compiler")
            run: Run = partial(torch.compile(forward, dynamic=False), *inputs)
            if deep:
                each = bare.forward(model.network, columns, torch.compile(bare.layer, dynamic=False))
                run = partial(each, *column_inputs(model, state, columns))
            run()
            found.runs[BY_LAYER if deep else COMPILED] = run
    return _with_graph(found, model.device)


def _with_graph(found: Backbones, device: torch.device) -> Backbones:
    if device.type == "cuda":
        last = list(found.runs)[-1]
        with _noted(found, "no CUDA graph"):
            found.runs[f"{last}, {GRAPH}"] = _graph(found.runs[last], device)
    return found


@contextmanager
def _noted(found: Backbones, what: str) -> Iterator[None]:
    """Turn any failure into a note and continue: compilers raise all kinds of errors."""
    try:
        yield
    except Exception as error:
        found.notes.append(f"{what}: {first_line(error)}")


def eager(model: Denoiser, state: State) -> Run:
    """The network without compiling, on these rows."""
    if isinstance(model, Transformer):
        return partial(_forward(model), *_inputs(model, state))
    rows = torch.arange(len(state.tokens), device=model.device)
    return lambda: model.look(state, rows)[0]


def _forward(model: Transformer) -> Forward:
    network = model.network

    def forward(tokens: Tensor, columns: Tensor, sigma: Tensor | None, *waves: Tensor) -> Tensor:
        hidden: Tensor = network(tokens, columns, None, sigma, waves=waves or None)[0]
        return hidden

    return forward


def _inputs(model: Transformer, state: State) -> tuple[Tensor | None, ...]:
    """Of `_forward`; what is equal in every step and row is made once, here."""
    columns = torch.arange(state.tokens.shape[1], device=model.device)[None]
    return state.tokens, columns, _sigma(model, state), *(model.network.waves(columns) or ())


def _sigma(model: Transformer, state: State) -> Tensor | None:
    return None if model.noise is None else model.noise(torch.full_like(state.time, 0.5))


def _graph(run: Run, device: torch.device) -> Run:
    """The same kernels without their launches."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = run()

    def replay() -> Tensor:
        graph.replay()
        return hidden

    return replay


# --- the head alone --------------------------------------------------------------------------------------------------


def products(head: Head, hidden: Tensor, counts: Sequence[int]) -> dict[int, Callable[[], object]]:
    """For some of the counts of masked positions: one matrix product of the head with as many rows."""
    if head.weight is None:
        return {}
    weight, rows = head.weight.T, hidden.flatten(0, 1)
    points = {int(point) for point in np.linspace(min(counts), max(counts), COUNTS)}
    return {point: partial(torch.matmul, rows[:point], weight) for point in sorted(points)}


def mean_ms(times: Mapping[int, float], counts: Sequence[int]) -> float:
    """The mean over the steps of a run, interpolated between the counts that were timed."""
    return float(np.interp(counts, list(times), list(times.values())).mean()) if times else 0.0


# --- the public style ------------------------------------------------------------------------------------------------


def public_step(run: Run, head: Head, state: State, temperature: float, reveal: int) -> Callable[[], object]:
    """One step as public decoding loops take it: the vocabulary at every position, in float64, several times over.

    Softmax, entropy, Gumbel noise where the temperature is above 0, and the most confident masked positions of each
    row decided.
    """
    dice = torch.Generator(state.tokens.device).manual_seed(0)
    tokens, masked = state.tokens, state.masked

    def step() -> tuple[Tensor, Tensor]:
        hidden = run()[: len(tokens)]
        logits = hidden if head.weight is None else F.linear(hidden, head.weight, head.bias)
        exact = logits.double()
        noisy = exact
        if temperature > 0:
            noise = torch.rand(exact.shape, dtype=exact.dtype, device=exact.device, generator=dice)
            noisy = exact.exp() / (-noise.log()) ** temperature
        guess = noisy.argmax(2)
        probability = exact.softmax(2)
        entropy = -(probability * (probability + 1e-10).log()).sum(2)
        confidence = probability.gather(2, guess[:, :, None])[:, :, 0].where(masked, -torch.inf)
        places = confidence.topk(reveal, 1).indices
        return tokens.scatter(1, places, guess.gather(1, places)), entropy

    return step


def public_columns(
    model: Transformer, state: State, columns: Columns, temperature: float, reveal: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """One step as public loops with a cache take it: a block, eager, against buffers; and the pass that only keeps it.

    Both apply the head at every column of the block, as the forward pass of a public model does.
    """
    run: Run = partial(bare.forward(model.network, columns), *column_inputs(model, state, columns))
    head, at = model.head, slice(columns.kept, columns.kept + columns.width)
    mine = {name: getattr(state, name)[:, at] for name in ("tokens", "writable", "attend")}
    step = public_step(run, head, state.replace(**mine), temperature, min(reveal, columns.width))
    return step, lambda: run() if head.weight is None else F.linear(run(), head.weight, head.bias)


def check_public(head: Head, state: State) -> None:
    """Raise OutOfMemoryError where a host lacks the memory for such a step, as a GPU does by itself."""
    device = state.tokens.device
    if device.type != "cuda" and state.tokens.numel() * head.width * 8 * COPIES > memory.free(device):
        raise torch.OutOfMemoryError
