"""Hidden rows × head -> the fields of Beliefs and Drawn on a GPU, with no logits in memory and no host sync.

Shapes depend on the shape of `where` alone, so a call can be captured in a CUDA graph once it has run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.core.constraint import Allowed
from unmask.core.denoiser import Head
from unmask.core.gpu.device import compiled, on

MASSES = 1 << 27  # bytes of `mass` and `peaks` at a time; positions beyond it are drawn in a second round
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2E = 1.4426950408889634
COLDEST, HOTTEST = 1e-30, 1e30  # temperatures that float32 can divide by
FEW = 16  # banned ids whose logits are computed one by one
MERGED = 16  # rows of a program that joins parts
COMPACTED = 4096  # positions that are looked through at a time
LARGE = (9, 10)  # compute capabilities with 227 KiB of shared memory
Fields = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
_Parts = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Config:
    """How a sweep is laid out."""

    rows: int = 128
    columns: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    programs: int = 1  # on a multiprocessor at a time
    group: int = 16  # blocks of rows that share the cache
    waves: int = 16  # pieces of work for a program, to share it out evenly
    piece: int = 64  # columns that `pick` computes again
    precision: str = "tf32x3"  # of a float32 product; ieee: every product in float32


SMALL = Config(64, 64, 32, 4, 3, 2)  # fits every device
CPU = Config(16, 32, 16, 4, 1, 1, group=2, waves=2, piece=16, precision="ieee")  # Triton's interpreter


def config_for(hidden: Tensor) -> Config:
    """The layout for this shape and device: the best of experiments/fused_sweep.py on an H200 at depth 4,096 and 1,024
    rows or more; for other depths by arithmetic."""
    if not hidden.is_cuda:
        return CPU
    if torch.cuda.get_device_capability(hidden.device)[0] not in LARGE:
        return SMALL
    if hidden.dtype == torch.float32:
        return Config(64, 128, 32, 4, 3, 2)
    if hidden.shape[-1] <= 1024:
        return Config(128, 128, 64, 4, 3, 2)  # the second program computes while the first one sums up
    return Config(128, 256, 64, 8, 4)


def usable(hidden: Tensor, head: Head, top_k: int | None = None, top_p: float | None = None) -> bool:
    """Whether the kernels can do this."""
    weight = head.weight
    return (
        weight is not None
        and top_k is None
        and (top_p is None or top_p >= 1)
        and hidden.dtype == weight.dtype
        and hidden.dtype in DTYPES
        and compiled(hidden, weight)
    )


@dataclass(frozen=True)
class Pieces:
    """What `weigh` summed up of each piece of the vocabulary: with it a draw at temperature 1 needs no second sweep.

    Banned ids are no part of it, but of the beliefs.
    """

    mass: Tensor  # [N, pieces]
    peaks: Tensor  # [N, tiles]: what they are relative to
    bases: Tensor  # [4, N]
    slot: Tensor  # [B, L] int32: the row of a position in them; -1 if it was not asked about
    config: Config
    ban: tuple[int, ...] = ()
    numbers: Tensor | None = None  # [3, B, L] entropy, top and second of what is drawn from, where ids are banned

    def __getitem__(self, rows: Tensor) -> Pieces:
        """Of these rows of the batch."""
        numbers = None if self.numbers is None else self.numbers[:, rows]
        return replace(self, slot=self.slot[rows], numbers=numbers)


def weigh(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    tokens: Tensor,
    config: Config | None = None,
    keep: tuple[int, ...] | None = None,
    allowed: Allowed | None = None,
) -> tuple[Fields, Pieces | None]:
    """entropy, normaliser, top, second, best, standing at `where` [B, L]; zeros elsewhere. To `keep` for a draw that
    bans these ids, a few: also pieces, if there is room for them. `allowed`: the distribution of these tokens alone."""
    with_pieces = keep is not None and len(keep) <= FEW
    best, numbers = _outputs(where, 8 if with_pieces and keep else 5)
    pieces = None
    if where.numel():
        with on(hidden):
            slot = torch.full(where.shape, -1, dtype=torch.int32, device=where.device) if with_pieces else None
            job = _among(_job(hidden, head, where, config, slot), allowed)
            if slot is not None and keep is not None and job.places <= job.most:
                job = _under(job, head, 1.0, keep) if keep else job
                pieces = Pieces(*_masses(job), slot, job.config, keep, numbers[5:] if keep else None)
            mass, peaks, bases = (None, None, None) if pieces is None else (pieces.mass, pieces.peaks, pieces.bases)
            _merge(job, _sweep(job, mass, peaks), best, numbers, tokens=tokens, bases=bases)
    entropy, normaliser, standing, top, second = numbers[:5].unbind()
    return (entropy, normaliser, top, second, best, standing), pieces


def draw_from(pieces: Pieces, hidden: Tensor, head: Head, where: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """token, model_logp, log at `where` [B, L], at temperature 1; zeros where `weigh` has kept no pieces."""
    token, numbers = _outputs(where)
    if where.numel():
        with on(hidden):
            job = _job(hidden, head, where & (pieces.slot >= 0), pieces.config)
            job = _under(job, head, 1.0, pieces.ban) if pieces.ban else job
            _pick(job, dice, token, numbers, pieces.mass, pieces.peaks, pieces.bases, pieces.slot.contiguous())
    return token, numbers[0], numbers[1]


def draw(
    hidden: Tensor,
    head: Head,
    where: Tensor,
    dice: Tensor,
    temperature: float,
    ban: tuple[int, ...] = (),
    config: Config | None = None,
    allowed: Allowed | None = None,
) -> Fields:
    """token, model_logp, log, entropy, top, second at `where` [B, L]; zeros elsewhere. `allowed`: the only tokens that
    are drawn."""
    token, numbers = _outputs(where)
    if where.numel():
        with on(hidden):
            job = _under(_job(hidden, head, where, config), head, temperature, ban)
            job = job if allowed is None else replace(_among(job, allowed), own=True)
            if temperature == 0:
                _merge(job, _sweep(job), token, numbers)
            else:
                for part in _rounds(job):
                    _draw(part, dice, token, numbers)
    model_logp, log, entropy, top, second = numbers.unbind()
    return token, model_logp, log, entropy, top, second


# --- what the kernels are given --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """Operands and layout of one sweep."""

    hidden: Tensor  # [B, L, D]
    weight: Tensor  # [V, D]
    extra: Tensor | None  # [V] float32: bias, and -inf at absent ids
    index: Tensor  # [N] int64: the positions asked come first, in order
    count: Tensor  # [1] int64: how many they are
    config: Config
    programs: int
    closed: Tensor | None = None  # [V] float32: `extra`, and -inf at banned ids
    ban: Tensor | None = None  # [V] float32: -inf at banned ids, where the model's own numbers are summed up as well
    banned: Tensor | None = None  # or the banned ids, which are then all that the two differ by
    row: Tensor | None = None  # [B, L] int64: the row of each position in the table
    table: Tensor | None = None  # [M, C] uint8: 0 at tokens that are not allowed
    kind: Tensor | None = None  # [V] int32: the column of each token in it
    own: bool = False  # the model's own numbers are summed up as well
    scale: float = LOG2E

    @property
    def places(self) -> int:
        """N, the most positions that could be asked."""
        return len(self.index)

    @property
    def tiles(self) -> int:
        return _ceil(len(self.weight), self.config.columns)

    @property
    def most(self) -> int:
        """Positions whose pieces `MASSES` has room for."""
        return max(1, MASSES // (4 * self.tiles * (self.config.columns // self.config.piece + 1)))

    @property
    def items(self) -> int:
        """The most pieces of work there can be, whatever is asked."""
        blocks = _ceil(self.places, self.config.rows)
        return min(max(self.programs * self.config.waves, blocks), blocks * self.tiles)

    @property
    def sizes(self) -> tuple[int, ...]:
        """L, D, V and the strides."""
        return (*self.hidden.shape[1:], len(self.weight), *self.hidden.stride(), *self.weight.stride())

    @property
    def kinds(self) -> int:
        """C, the columns of the table."""
        return 0 if self.table is None else self.table.shape[1]


def _job(hidden: Tensor, head: Head, where: Tensor, config: Config | None, slot: Tensor | None = None) -> _Job:
    assert head.weight is not None
    config = config or config_for(hidden)
    processors = torch.cuda.get_device_properties(hidden.device).multi_processor_count if hidden.is_cuda else 2
    programs = processors * config.programs
    extra = _extra(head, head.absent, hidden.device)
    return _Job(hidden, head.weight, extra, *_compact(where, slot), config, programs, closed=extra)


def _under(job: _Job, head: Head, temperature: float, ban: tuple[int, ...]) -> _Job:
    """The same for the distribution drawn from."""
    device = job.hidden.device
    scale = LOG2E / min(max(temperature or 1.0, COLDEST), HOTTEST)
    closed = _extra(head, (*head.absent, *ban), device)
    if temperature not in (0, 1) or len(ban) > FEW:
        out = _outside(ban, head.width, device) if ban else None
        return replace(job, closed=closed, ban=out, own=True, scale=scale)
    return replace(job, closed=closed, banned=_ids(ban, device) if ban else None)


def _among(job: _Job, allowed: Allowed | None) -> _Job:
    """The same for the allowed tokens alone."""
    if allowed is None:
        return job
    table = allowed.table.contiguous().view(torch.uint8)
    return replace(job, row=allowed.row.contiguous(), table=table, kind=allowed.kind.contiguous())


def _compact(where: Tensor, slot: Tensor | None) -> tuple[Tensor, Tensor]:
    """The positions asked as an index with room for all, and their number, without a look from the host; `slot` gets
    their places in it."""
    from unmask.core.gpu.kernels.compact import compact

    asked = where.contiguous()
    index = torch.empty(asked.numel(), dtype=torch.int64, device=asked.device)
    count = torch.empty(1, dtype=torch.int64, device=asked.device)
    compact[(1,)](asked, index, count, slot, asked.numel(), BLOCK=COMPACTED, num_warps=8)
    return index, count


def _extra(head: Head, without: tuple[int, ...], device: torch.device) -> Tensor | None:
    """The bias, and -inf at these ids, in one vector."""
    if head.bias is None:
        return _outside(without, head.width, device) if without else None
    if without not in head.closed:
        bias = head.bias.float().contiguous()
        head.closed[without] = bias + _outside(without, head.width, device) if without else bias
    return head.closed[without]


@functools.lru_cache(maxsize=32)  # a copy to the device makes the host wait
def _ids(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ids, device=device)


@functools.lru_cache(maxsize=32)
def _outside(ids: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """-inf at these ids, 0 elsewhere."""
    return torch.zeros(width, device=device).index_fill(0, _ids(ids, device), -torch.inf)


def _outputs(where: Tensor, count: int = 5) -> tuple[Tensor, Tensor]:
    """Ids [B, L] and numbers [count, B, L] for the kernels to fill in; one memory, so that it is cleared at once."""
    both = torch.zeros(2 + count, *where.shape, device=where.device)
    return both[:2].view(-1).view(torch.int64).view(where.shape), both[2:]


def _rounds(job: _Job) -> list[_Job]:
    """The same in rounds of as many positions as `MASSES` allows."""
    return [
        replace(job, index=index, count=(job.count - begin * job.most).clamp(0, len(index)))
        for begin, index in enumerate(torch.split(job.index, job.most))
    ]


def _ceil(size: int, by: int) -> int:
    return -(-size // by)


# --- launches --------------------------------------------------------------------------------------------------------


def _sweep(job: _Job, mass: Tensor | None = None, peaks: Tensor | None = None) -> _Parts:
    """Partial numbers and ids of every piece of work; `mass` and `peaks` are filled in."""
    from unmask.core.gpu.kernels.sweep import sweep

    config, device = job.config, job.hidden.device
    partial = torch.empty(6 if job.own else 4, job.items, config.rows, device=device)
    ids = torch.empty(job.items, config.rows, dtype=torch.int32, device=device)
    extra = job.extra if job.own else job.closed
    operands = job.hidden, job.weight, extra, job.ban, job.row, job.table, job.kind, job.index, job.count
    sweep[(min(job.programs, job.items),)](
        *operands,
        partial,
        ids,
        mass,
        peaks,
        *job.sizes,
        job.kinds,
        job.items,
        job.scale,
        OWN=job.own,
        EVEN=job.hidden.shape[2] % config.depth == 0,
        FULL=len(job.weight) % config.columns == 0,
        PRECISION=config.precision,
        PROGRAMS=job.programs,
        WAVES=config.waves,
        GROUP=config.group,
        BLOCK_M=config.rows,
        BLOCK_N=config.columns,
        BLOCK_K=config.depth,
        PIECE=config.piece,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return partial, ids


def _merge(
    job: _Job, parts: _Parts, best: Tensor, numbers: Tensor, tokens: Tensor | None = None, bases: Tensor | None = None
) -> None:
    """`best` and `numbers` from the parts: of Beliefs where `tokens` are given, of Drawn and `bases` otherwise."""
    from unmask.core.gpu.kernels.finish import merge

    tokens = None if tokens is None else tokens.contiguous()
    operands = job.hidden, job.weight, job.extra, job.banned, job.index, job.count, tokens, *parts, best, numbers, bases
    merge[(_ceil(job.places, MERGED),)](
        *operands,
        *job.sizes,
        job.items,
        job.places,
        best.numel(),
        0 if job.banned is None else len(job.banned),
        job.scale,
        OWN=job.own,
        PROGRAMS=job.programs,
        WAVES=job.config.waves,
        BLOCK_M=job.config.rows,
        BLOCK_N=job.config.columns,
        ROWS=MERGED,
        SPLITS=32,
        BLOCK_D=128,
    )


def _masses(job: _Job) -> tuple[Tensor, Tensor, Tensor]:
    """mass, peaks and bases, to be filled in."""
    pieces = job.tiles * (job.config.columns // job.config.piece)
    shapes = (job.places, pieces), (job.places, job.tiles), (4, job.places)
    mass, peaks, bases = (torch.empty(*shape, device=job.hidden.device) for shape in shapes)
    return mass, peaks, bases


def _draw(job: _Job, dice: Tensor, token: Tensor, numbers: Tensor) -> None:
    """A token for every position of the job, and its numbers."""
    mass, peaks, bases = _masses(job)
    _merge(job, _sweep(job, mass, peaks), token, numbers, bases=bases)
    _pick(job, dice, token, numbers, mass, peaks, bases)


def _pick(
    job: _Job,
    dice: Tensor,
    token: Tensor,
    numbers: Tensor,
    mass: Tensor,
    peaks: Tensor,
    bases: Tensor,
    slot: Tensor | None = None,
) -> None:
    """Tokens by inverse CDF over the pieces, whose rows are the places of the job, or else `slot` says which."""
    from unmask.core.gpu.kernels.finish import pick

    config, pieces = job.config, mass.shape[1]
    limits = job.row, job.table, job.kind
    operands = job.hidden, job.weight, job.closed, *limits, job.index, job.count, dice.contiguous()
    pick[(job.places,)](
        *operands,
        slot,
        mass,
        peaks,
        bases,
        token,
        numbers,
        *job.sizes,
        job.kinds,
        bases.shape[1],
        token.numel(),
        job.scale,
        BLOCK_N=config.columns,
        PIECE=config.piece,
        PIECES=max(16, 1 << (pieces - 1).bit_length()),
        BLOCK_D=256 // job.hidden.element_size(),
    )
