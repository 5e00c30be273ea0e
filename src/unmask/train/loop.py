"""Training data × a network × a Plan -> trained weights: the loop, its log and its checkpoints."""

from __future__ import annotations

import json
import math
import reprlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.errors import InputError, ModelError, first_line, guarded, unknown
from unmask.evaluate.rows import to_json
from unmask.models.families.mdlm import log_linear
from unmask.models.files.checkpoint import opened, read_tensors
from unmask.models.network import Network, empty
from unmask.train.initial import fit
from unmask.train.log import PLOT, draw, open_log, read_log
from unmask.train.optim import OPTIMIZERS, Optimizer
from unmask.train.process import (
    SCHEDULES,
    WEIGHTINGS,
    block_times,
    blocks_of,
    expected,
    masked,
    noised_hidden,
    objective,
    times,
)
from unmask.train.task import Batches, TrainData

STATE = "state.safetensors"
HOW = (
    "optimizer",
    "rate",
    "warmup",
    "decay",
    "clip",
    "average",
    "schedule",
    "weighting",
    "tilt",
    "mixture",
)  # of a Plan
OnEvent = Callable[[dict[str, Any]], None]
BOUNDS: dict[str, tuple[int, int]] = {  # of a Plan
    **dict.fromkeys(("steps", "batch", "log"), (1, 10**9)),
    **dict.fromkeys(("seconds", "rate", "tilt", "check", "clip", "warmup", "decay"), (0, 10**9)),
    "average": (0, 1),
    "mixture": (0, 1),
    "seed": (0, 2**31),
    "workers": (0, 1024),
}


@dataclass(frozen=True)
class Plan:
    """How a network is trained. It ends at `steps` or after `seconds` of training, whichever is first."""

    steps: int | None = None
    seconds: float | None = None
    batch: int = 1024
    optimizer: str = "muon"
    rate: float = 5e-3  # the highest; it rises over `warmup` steps and falls as a cosine to a hundredth
    warmup: int = 200
    decay: float = 0.01  # of weights, for matrices only
    clip: float = 1.0  # of the gradient's norm
    average: float = 0.9995  # of the moving average of weights, which is saved; less before step 18,000
    schedule: str = "linear"
    weighting: str = "even"
    tilt: float = 0.0  # times are drawn with a density that grows as t to this power: 1 favours many masks
    mixture: float = 0.0  # the share of steps with block-causal attention, for networks that are to learn both
    seed: int = 0
    half: bool = False  # bf16 matrix products
    compile: bool = False
    check: float = 60.0  # seconds between validations; a checkpoint is written at each
    log: int = 50  # steps between lines of the log
    workers: int = 0  # processes that make batches

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise InputError("training has no end", "give steps or seconds")
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # nor NaN
                raise InputError(f"{name} is {value}", f"it must be from {least} to {most}")
        for name, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("weighting", WEIGHTINGS)):
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)
        if self.mixture and self.tilt:
            raise InputError("tilt has no effect on block-causal steps", "leave it or mixture out")
        if self.tilt and self.weighting == "nelbo":
            raise InputError("tilt has no effect on the NELBO", "leave it out, or weight evenly")

    def progress(self, step: int, seconds: float) -> float:
        """The share that is done, from 0 to 1."""
        by_steps = 0.0 if self.steps is None else step / max(1, self.steps)
        return min(1.0, max(by_steps, 0.0 if self.seconds is None else seconds / max(1e-9, self.seconds)))

    def in_blocks(self, step: int) -> bool:
        """Whether this step has block-causal attention: they are spread evenly."""
        return int((step + 1) * self.mixture) > int(step * self.mixture)

    def rate_at(self, step: int, progress: float) -> float:
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        return self.rate * rise * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)


class _Losses(nn.Module):
    """-log p of the true token at the asked places of the flat batch [N], all others 0 [B, L]: what is compiled."""

    def __init__(self, network: Network, flex: bool = False) -> None:
        super().__init__()
        self.network, self.flex = network, flex

    def forward(
        self,
        noised: Tensor,
        clean: Tensor,
        columns: Tensor,
        waves: tuple[Tensor, Tensor] | None,
        sigma: Tensor | None,
        asked: Tensor,
        blocks: Tensor | None = None,  # [B, L] int64: attention is block-causal
    ) -> Tensor:
        if blocks is None:
            hidden, _ = self.network(noised, columns, sigma=sigma, waves=waves)
        else:
            hidden = noised_hidden(self.network, noised, clean, columns, waves, blocks, self.flex)
        logits = self.network.logits(hidden.flatten(0, 1)[asked])
        found = F.cross_entropy(logits, clean.flatten()[asked], reduction="none")
        return found.new_zeros(clean.numel()).scatter(0, asked, found).view(clean.shape)


def _asked(hide: Tensor, expected: float) -> Tensor:  # [N] int64
    """Masked places of the flat batch first, then others, as many as the expected number of masks and a margin.

    Their number depends on the shape alone, so that nothing is recompiled.
    """
    rows, length = hide.shape
    spare = 6 * (hide.numel() ** 0.5 + length * rows**-0.5)  # far more than the number of masks varies
    room = min(hide.numel(), math.ceil(expected * hide.numel() + spare))
    return hide.flatten().to(torch.uint8).argsort(descending=True, stable=True)[:room]


@dataclass
class _Run:
    """The state of a training from step to step, and in a checkpoint."""

    network: Network
    averages: list[Tensor]
    optimizer: Optimizer
    block_size: int = 0  # open positions to a block of block-causal attention
    data: Mapping[str, Any] = field(default_factory=dict)  # facts about the data
    plan: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0


def train(
    network: Network,
    data: TrainData,
    plan: Plan,
    directory: Path,
    *,
    mask: int,
    save: Callable[[Path, Network], None],
    block_size: int = 0,
    about: Mapping[str, Any] | None = None,
    prepare: Callable[[], Mapping[str, Any]] = dict,
    on_event: OnEvent = lambda event: None,
    on_check: Callable[[int], None] = lambda step: None,
) -> Network:
    """Resume from the state in `directory`, or start from the network's weights; the network with averaged weights.

    `save` writes a network as a model into a directory, which also has the log and the state to resume from. The log
    begins with the plan and `about`, facts about the data. `prepare` does the long work on the data, after the network
    is known to fit, and returns more facts. `on_event` gets what the log gets, `on_check` the step before a validation.
    """
    device = network.embed.weight.device
    losses: Callable[..., Tensor] = _Losses(network, flex=plan.compile and device.type == "cuda")
    losses = torch.compile(losses, dynamic=False) if plan.compile else losses
    generator = torch.Generator(device)
    with (
        open_log(directory) as log,
        nullcontext(_begin(network, plan, directory, block_size)) as run,
        Batches(data, plan.seed, plan.batch, plan.workers, run.step) as batches,
    ):
        about = {**(about or {}), **prepare()}
        _check_resumed(run, {"seed": plan.seed, "batch": plan.batch, **about}, asdict(plan))
        began, checked = time.perf_counter() - run.seconds, run.seconds

        def say(event: dict[str, Any]) -> None:
            log.add([to_json(event)])
            on_event(event)

        begin = {"event": "start", "step": run.step, "plan": asdict(plan), "device": str(device)}
        say(begin | ({"data": about} if about else {}))
        try:
            for clean, open in batches:
                progress = plan.progress(run.step, run.seconds)
                if progress >= 1:
                    break
                generator.manual_seed((plan.seed * 1_000_003 + run.step) % 2**32)  # a resumed run repeats it
                tokens, free = (_moved(part, device) for part in (clean, open))
                rate = plan.rate_at(run.step, progress)
                with unbroken():
                    loss, norm = _step(run, losses, tokens.long(), free.expand_as(tokens), plan, generator, mask, rate)
                    run.step += 1
                run.seconds = time.perf_counter() - began
                if run.step % plan.log == 0 or run.step == 1:
                    figures = {"loss": float(loss), "norm": float(norm)}  # waits for the device
                    say(_event("step", run) | figures | {"rate": rate, "progress": round(progress, 4)})
                    if not math.isfinite(figures["loss"]):
                        raise ModelError(f"the loss is {figures['loss']} after {run.step} steps", "lower the rate")
                if run.seconds - checked >= plan.check:
                    pause = time.perf_counter()
                    on_check(run.step)
                    _keep(run, data, directory, save, say)
                    began += time.perf_counter() - pause  # validation does not count as training
                    checked = run.seconds
        except KeyboardInterrupt:
            _write_state(run, directory)  # the next run resumes here
            save(directory, _averaged(run))
            raise
        on_check(run.step)
        _keep(run, data, directory, save, say)
    draw(read_log(directory), directory / PLOT)
    return _averaged(run)


def _moved(part: Any, device: torch.device) -> Tensor:
    """An array on the device; a GPU takes it from pinned memory, so that the steps before need not be done."""
    found = torch.from_numpy(part)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)


def _step(
    run: _Run,
    losses: Callable[..., Tensor],
    clean: Tensor,
    open: Tensor,
    plan: Plan,
    generator: torch.Generator,
    mask: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """One step of the optimiser; its loss and the gradient's norm, still on the device."""
    schedule, size = SCHEDULES[plan.schedule], run.block_size
    blocks = None
    if plan.in_blocks(run.step):  # every row is computed twice, so half as many take part
        clean, open = clean[::2], open[::2]
        blocks = blocks_of(open, size)
        when = block_times(blocks, -(-clean.shape[1] // size), generator)
    else:
        when = times(len(clean), generator, plan.tilt)
    hide = masked(open, when, schedule, generator)
    columns = torch.arange(clean.shape[1], device=clean.device)[None]
    sigma = log_linear(when) if run.network.shape.condition else None
    cast = torch.autocast(clean.device.type, torch.bfloat16) if plan.half else nullcontext()
    asked = _asked(hide, expected(schedule, plan.tilt))
    with cast:
        waves = run.network.waves(columns)
        each = losses(clean.masked_fill(hide, mask), clean, columns, waves, sigma, asked, blocks)
    loss = objective(each, hide, open, when, schedule, plan.weighting)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = list(run.network.parameters())
    norm = nn.utils.clip_grad_norm_(parameters, plan.clip)
    run.optimizer.step(rate)
    with torch.no_grad():
        share = 1 - min(plan.average, (run.step + 1) / (run.step + 10))  # at most over a ninth of the steps so far
        torch._foreach_lerp_(run.averages, [p.detach() for p in parameters], share)
    return loss.detach(), norm


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, so that the state to resume from is whole; pressed twice, it does not.

    So does a SIGTERM that stops the command, however often it comes.
    """
    here = threading.current_thread() is threading.main_thread()  # others get no signals
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if here else {}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    held: list[signal.Signals] = []

    def hold(number: int, frame: FrameType | None) -> None:
        one = signal.Signals(number)
        again = one in held
        held.append(one)
        if again and one is signal.SIGINT:
            handlers[one](number, frame)

    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if held:
        handlers[held[0]](held[0], None)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _begin(network: Network, plan: Plan, directory: Path, block_size: int) -> _Run:
    """The run resumed from the state in the directory, or a new one of the network's own weights."""
    network.requires_grad_(True).train()
    optimizer = Optimizer(network, plan.optimizer, plan.decay)
    run = _Run(network, [p.detach().clone() for p in network.parameters()], optimizer, block_size)
    path = directory / STATE
    if path.exists():
        _resume(run, path)
    return run


def _resume(run: _Run, path: Path) -> None:
    try:
        kept, notes = read_tensors(path)
        run.data, run.plan = (json.loads(notes.get(name, "{}")) for name in ("data", "plan"))
    except (ModelError, ValueError) as error:
        way_out = f"begin in another DIR; --weights {path.parent} takes what was learned"
        raise ModelError(f"{str(path)!r} cannot be read ({first_line(error)})", way_out) from None
    names = [name for name, _ in run.network.named_parameters()]
    for kind, tensors in (("weight.", list(run.network.parameters())), ("average.", run.averages)):
        found = {name.removeprefix(kind): tensor for name, tensor in kept.items() if name.startswith(kind)}
        fit(path, found, dict(zip(names, tensors, strict=True)))
        for name, tensor in zip(names, tensors, strict=True):
            tensor.data.copy_(found[name])
    run.step, run.seconds = int(kept["step"]), float(kept["seconds"])
    run.optimizer.restore(kept)


def _check_resumed(run: _Run, data: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Refuse other data than the training was begun with; warn of other settings."""
    for name, before in run.data.items():
        now = json.loads(json.dumps(data.get(name)))
        if now != before:
            what = f"{name} is {reprlib.repr(now)}, it was {reprlib.repr(before)}"
            raise ModelError(f"training was begun with other data: {what}", "give the same, or another DIR")
    for name in HOW:
        if plan[name] != run.plan.get(name, plan[name]):
            text = f"from step {run.step} on {name} is {plan[name]}, it was {run.plan[name]}"
            warnings.warn(text, stacklevel=3)
    run.data, run.plan = data, plan


def _keep(run: _Run, data: TrainData, directory: Path, save: Callable[[Path, Network], None], say: OnEvent) -> None:
    """Write the state and the averaged model, and validate it."""
    _write_state(run, directory)
    network = _averaged(run)
    save(directory, network)
    say(_event("validation", run) | data.validate(network))


def _event(name: str, run: _Run) -> dict[str, Any]:
    return {"event": name, "step": run.step, "seconds": round(run.seconds, 2)}


def reached(directory: Path) -> int | None:
    """The step of the state in a directory; None: there is none."""
    if not (directory / STATE).exists():
        return None
    with opened(directory / STATE) as file:
        return int(file.get_tensor("step"))


def _write_state(run: _Run, directory: Path) -> None:
    """Write the state to resume from as a whole; refuse weights that are not finite."""
    if not all(bool(weight.isfinite().all()) for weight in (*run.network.parameters(), *run.averages)):
        raise ModelError(f"the weights are not finite at step {run.step}", "lower the rate; an earlier state is saved")
    kept = {"step": torch.tensor(run.step), "seconds": torch.tensor(run.seconds)}
    for (name, weight), average in zip(run.network.named_parameters(), run.averages, strict=True):
        kept |= {f"weight.{name}": weight.detach().cpu(), f"average.{name}": average.cpu()}
    kept |= {name: tensor.cpu() for name, tensor in run.optimizer.state().items()}
    new, about = directory / f"{STATE}.new", {"data": json.dumps(run.data), "plan": json.dumps(run.plan)}
    with guarded(f"cannot write {str(directory / STATE)!r}"):
        save_file({name: tensor.contiguous() for name, tensor in kept.items()}, new, about)
        new.rename(directory / STATE)


def _averaged(run: _Run) -> Network:
    """A copy of the network with the moving averages as weights."""
    copy = empty(run.network.shape, run.averages[0].device, run.averages[0].dtype)
    for parameter, average in zip(copy.parameters(), run.averages, strict=True):
        parameter.copy_(average)
    return copy
