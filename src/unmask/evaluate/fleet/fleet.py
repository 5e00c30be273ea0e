"""Fleet: a crew whose parts are done by actors of Ray; rows come back to this process, which alone stores them."""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unmask._version import __version__
from unmask.core.slices import Leg
from unmask.decoding.slices import Answers
from unmask.errors import InputError, ModelError, UnmaskError, first_line
from unmask.evaluate.crew import Job, each
from unmask.evaluate.fleet import cluster
from unmask.evaluate.fleet.metrics import Progress, metered
from unmask.evaluate.fleet.queue import Queue
from unmask.evaluate.fleet.workers import Place, Report, Worker, end
from unmask.evaluate.loading import Loading, Source
from unmask.evaluate.parts import Part
from unmask.evaluate.rows import Line

RESTARTS = 5  # of a worker, in a row without a part done
TICK = 0.5  # seconds between two looks at the clock
REFILL = 4  # batches in a part of a search that stops early


def to_workers(text: str | None) -> int | tuple[int, int] | None:
    """`4` or `4-32`; None: as many as there is room for."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text or "1")
    if found is None:
        raise InputError(f"workers is {text!r}", "give a number, or a range like 4-32")
    return None if text is None else int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


@dataclass
class Member:
    """One actor, and what is known of it."""

    name: str
    slot: int
    actor: Any
    place: Place | None = None
    loaded: bool = False
    hashes: bool = False
    begun: set[int] = field(default_factory=set)  # the jobs that it has


@dataclass(frozen=True, eq=False)
class Call:
    """What a worker was asked for."""

    member: Member
    what: str
    part: Part | None = None
    queue: Queue | None = None  # that the part is of


@dataclass
class Fleet:
    """Actors on the machines of a cluster. `with Fleet("auto", model="text") as fleet: evaluate(task, fleet)`.

    They begin with the first part that there is to do. `address` is local (a cluster of this machine, which ends with
    the fleet), auto (that of RAY_ADDRESS, or the one that runs here) or HOST:PORT. `workers` is their number, or
    (least, most) for a cluster that grows; by default there are as many as it has room for. Each has `gpus` (0: none)
    and `cpus`, its threads.
    """

    address: str = cluster.LOCAL
    model: str | Source = ""
    workers: int | tuple[int, int] | None = None
    gpus: float = 1
    cpus: int = 1
    skip_lost: bool = False
    tries: int = 3
    patience: float = 30.0  # seconds: an earlier part is never late
    wait: float = 300.0  # seconds for the first worker; without end where `workers` is a range
    on_progress: Callable[[Progress], None] = lambda progress: None
    refill: int | None = REFILL
    kinds: Counter[str] = field(default_factory=Counter)
    given_up: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loading = self._loading(self.model)
        least, most = (self.workers, self.workers) if isinstance(self.workers, int) else self.workers or (1, None)
        if least is not None and (least < 1 or (most is not None and most < least)):
            raise InputError(f"workers is {self.workers}", "give at least 1, or a range like 4-32")
        self.least, self.most, self.elastic = least or 1, most, isinstance(self.workers, tuple)
        if isinstance(self.workers, int):
            self.least = 1  # a fixed number begins with the first one
        if self.cpus < 1 or self.gpus < 0:
            raise InputError(
                f"cpus is {self.cpus}, gpus is {self.gpus:g}", "give at least 1 CPU, and no less than 0 GPUs"
            )
        self.ray: Any = None
        self.weights: dict[Source, str | None] = {}
        self.rows, self.lost, self.again, self.working = 0, 0, 0, 0.0  # all so far, and since when
        self.record: Callable[[Progress], None] = lambda progress: None
        self.members: dict[str, Member] = {}
        self.refs: dict[Any, Call] = {}
        self.failures: Counter[int] = Counter()
        self.hashed: set[str] = set()  # machines whose weights are known to be the right ones
        self.run = uuid.uuid4().hex[:6]
        self.made = 0

    def _loading(self, model: str | Source) -> Source:
        if not isinstance(model, str | Source):
            raise InputError("a model is not sent to workers, they load it", "give its name, or a Loading")
        if not model:
            raise InputError("a fleet needs the name of a model", "give model=NAME")
        loading = Loading(model) if isinstance(model, str) else model
        return loading if loading.folder else replace(loading, folder=os.getcwd())

    def load(self, model: str | Source) -> Fleet:
        """The same fleet with this model from now on: workers with another one end."""
        loading = self._loading(model)
        if replace(loading, sha256=None) != replace(self.loading, sha256=None):
            for member in list(self.members.values()):
                self._kill(member)
            self.loading = loading
            self.hashed.clear()
            self.kinds.clear()
        return self

    # --- a crew ------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.gpus else "cpu")

    @property
    def name(self) -> str:
        return self.loading.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.loading.settings

    @property
    def origin(self) -> Mapping[str, Any]:
        return {"device": str(self.device), "threads": self.cpus, "workers": dict(self.kinds)}

    def prepare(self, jobs: Sequence[tuple[Job, Sequence[Any]]]) -> list[Job]:
        found: dict[int, Job] = {}
        parts = [Part(place, items, place) for place, (_, items) in enumerate(jobs)]
        sizes = [job.size * (self.refill or 1) if job.refills else job.size for job, _ in jobs]
        soon = sum(math.ceil(len(items) / size) for size, (_, items) in zip(sizes, jobs, strict=True))

        def take(part: Part, job: Job) -> None:
            found[part.number] = job

        self._run(Queue(parts, self.tries, 600.0), "prepared", [job for job, _ in jobs], take, soon)
        return [found[place] for place in range(len(jobs))]

    def work(self, jobs: Sequence[Job], parts: Sequence[Part], store: Callable[[Part, list[Line]], None]) -> None:
        queue = Queue(parts, self.tries, self.patience)
        for member in self.members.values():
            member.begun.clear()
        self.working = self.working or time.monotonic()

        def take(part: Part, rows: list[Line]) -> None:
            self.rows += len(rows)
            store(part, rows)

        self._run(queue, "do", jobs, take)
        self.given_up += queue.given_up

    def each(self, job: Job, items: Sequence[Any]) -> list[Any]:
        """What becomes of each item of a job: `decode(fleet, …)` asks so."""
        return each(self, job, items)

    # --- begin and end -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        if self.ray is not None and self.ray.is_initialized():  # else the user has ended it
            for member in list(self.members.values()):
                self._kill(member)
            self.ray.shutdown()  # ends a local cluster; another one stays
        self.ray = None

    def _begin(self) -> None:
        if self.loading.sha256 is None:
            if self.loading not in self.weights:
                self.weights[self.loading] = self.loading.fingerprint()
            self.loading = replace(self.loading, sha256=self.weights[self.loading])
        if self.ray is not None:
            return
        self.ray = cluster.connected(self.address, self.most, self.gpus, self.cpus)
        self.record = metered(self.run)
        self.here = str(self.ray.get_runtime_context().get_node_id())
        if self.most is None:
            self.most = max(1, cluster.room(self.ray, self.gpus, self.cpus))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _run(
        self, queue: Queue, call: str, jobs: Sequence[Job], take: Callable[[Part, Any], None], soon: int = 0
    ) -> None:
        """Do all parts of a queue with one method of the workers; `take` gets each first result.

        Workers for the parts that come `soon` begin to load meanwhile.
        """
        self._begin()
        last, started = time.monotonic(), False
        while queue.left:
            self._hire(max(queue.left, soon))
            ready = [member for member in self.members.values() if self._is_ready(member)]
            started = started or len(ready) >= min(self.least, queue.left)
            if started:
                self._hand_out(queue, ready, call, jobs)
            found, _ = self.ray.wait(list(self.refs), num_returns=1, timeout=TICK)
            for ref in found:
                self._take(ref, queue, take)
            last = time.monotonic() if ready else last
            if not self.elastic and time.monotonic() - last > self.wait:
                raise InputError(f"no worker was ready after {self.wait:.0f} s", self._lacks())
            asked = min(self.most or 1, queue.left + len(ready))
            rate = self.rows / (time.monotonic() - self.working + 1e-9) if self.working else 0.0
            now = Progress(len(ready), asked, self.lost, self.again + queue.again, self.rows, rate)
            self.record(now)
            self.on_progress(now)
        self.again += queue.again

    def _lacks(self) -> str:
        each = f"{self.gpus:g} GPUs and {self.cpus} CPUs" if self.gpus else f"{self.cpus} CPUs"
        return f"each needs {each}, the cluster has {cluster.described(self.ray)}; --workers MIN-MAX waits for more"

    def _is_ready(self, member: Member) -> bool:
        return member.loaded and member.place is not None and member.place.node in self.hashed

    def _hire(self, left: int) -> None:
        """Have an actor for every slot; those that the cluster has no room for yet are its demand to grow."""
        assert self.most is not None
        taken = {member.slot for member in self.members.values()}
        for slot in range(min(self.most, max(left, 1))):
            if slot in taken:
                continue
            self.made += 1
            name = f"unmask-{self.run}-{self.made}"
            how = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_restarts": 0, "max_task_retries": 0, "name": name}
            actor = self.ray.remote(Worker).options(**how).remote(str(self.device), self.cpus)
            member = self.members[name] = Member(name, slot, actor)
            self.refs[actor.where.remote()] = Call(member, "where")

    def _hand_out(self, queue: Queue, ready: Sequence[Member], call: str, jobs: Sequence[Job]) -> None:
        for member in ready:
            while (part := queue.next(member.name, len(ready), time.monotonic())) is not None:
                if call == "prepared":
                    ref = member.actor.prepared.remote(jobs[part.job], list(part.items))
                else:
                    if part.job not in member.begun:
                        self.refs[member.actor.begin.remote(part.job, jobs[part.job])] = Call(member, "begin")
                        member.begun.add(part.job)
                    ref = member.actor.do.remote(part.job, list(part.items))
                self.refs[ref] = Call(member, "part", part, queue)

    def _take(self, ref: Any, queue: Queue, take: Callable[[Part, Any], None]) -> None:
        """Take the answer of a worker; one that was lost gives its parts back."""
        if ref not in self.refs:  # of a worker that was lost meanwhile
            return
        call = self.refs.pop(ref)
        member, what, part = call.member, call.what, call.part
        errors = self.ray.exceptions
        try:
            found = self.ray.get(ref)
        except errors.RayTaskError as error:  # its code raised: what a user can mend ends the run, as on one device
            raise self._said(member, error) from None
        except errors.RayError as error:
            self._lose(member, queue, error)
            return
        if what == "where":
            self._welcome(member, found)
        elif what == "load":
            self._loaded(member, found)
        elif part is not None and call.queue is queue:  # else it was late, and others have done it in an earlier run
            self.failures[member.slot] = 0
            first, hung = queue.finished(member.name, part, time.monotonic())
            if first:
                take(part, found)
            for name in hung:
                self._lose(self.members[name], queue, None)

    def _welcome(self, member: Member, place: Place) -> None:
        """Check who it is, and have it load the model; one worker of each machine hashes the weights."""
        if place.version != __version__:
            what = f"{place.host} has unmask {place.version}, this is {__version__}"
            raise ModelError(what, "install the same version on every machine")
        member.place = place
        busy = {other.place.node for other in self.members.values() if other.hashes and other.place is not None}
        member.hashes = place.node not in self.hashed | busy
        self.refs[member.actor.load.remote(self.loading, member.hashes)] = Call(member, "load")

    def _loaded(self, member: Member, report: Report) -> None:
        assert member.place is not None
        member.loaded = True
        if member.hashes:
            self.hashed.add(member.place.node)
        self.kinds[report.kind] += 1

    # --- losses ------------------------------------------------------------------------------------------------------

    def _lose(self, member: Member, queue: Queue, error: BaseException | None) -> None:
        """Give the parts of a worker back; a new one takes its slot."""
        self._kill(member)
        self.lost += 1
        hopeless = queue.gone(member.name)
        if hopeless is not None and not self.skip_lost:
            what, way_out = "questions", "rows so far are kept; --skip-lost goes on without these questions"
            if any(isinstance(one, Leg | Answers) for one in hopeless.items):
                what, way_out = "slices", "give a smaller slice_size"
            raise UnmaskError(f"{queue.tries} workers were lost while they did {what} {hopeless.named()}", way_out)
        self.failures[member.slot] += 1 if error is not None and hopeless is None else 0
        if self.failures[member.slot] > RESTARTS:
            said = first_line(error) if error is not None else "it hung"
            raise UnmaskError(f"a worker was lost {RESTARTS + 1} times without a part done", said)

    def _kill(self, member: Member) -> None:
        self.members.pop(member.name, None)
        self.refs = {ref: entry for ref, entry in self.refs.items() if entry.member is not member}
        self.ray.kill(member.actor)
        if member.place is None:
            return
        if member.place.node == self.here:  # a frozen process does not hear Ray
            end(member.place.pid)
        else:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            at = NodeAffinitySchedulingStrategy(member.place.node, soft=False)
            self.ray.remote(end).options(num_cpus=0, max_retries=0, scheduling_strategy=at).remote(member.place.pid)

    def _said(self, member: Member, error: Any) -> Exception:
        """The error of a worker as it would have been raised here."""
        cause, place = error.cause, member.place
        if isinstance(cause, UnmaskError):
            away = place is not None and place.node != self.here and place.host not in cause.message
            return type(cause)(f"on {place.host}: {cause.message}", cause.hint) if place and away else cause
        where = "a worker" if place is None else place.host
        return UnmaskError(
            f"{where}: {type(cause).__name__}: {first_line(cause)}", "its log is in Ray's session folder"
        )
