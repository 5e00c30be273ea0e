"""SEARCHES: name -> function from settings to a Search. Its signature lists the settings; its docstring is help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from unmask.core.resampling import Chooser, Potential, Resampled, Search
from unmask.errors import SettingError, unknown
from unmask.search.choosers import CHOOSERS
from unmask.search.potentials import POTENTIALS
from unmask.search.schemes import SCHEMES

__all__ = ["CHOOSERS", "POTENTIALS", "SCHEMES", "SEARCHES", "Chooser", "Potential", "Resampled", "Search"]

Value = TypeVar("Value")


def vanilla() -> Search:
    """One path, no search."""
    return Search()


def best_of_n(
    particles: int = 5,
    choose: str = "entropy",
    until: float = 0.0,
    most: int | None = None,
    calibrated: str | None = None,
) -> Search:
    """E-BoN: independent paths, the one of lowest path entropy."""
    chooser = _find("choose", choose, CHOOSERS)
    if until and chooser.cost is None:
        *others, last = [name for name, one in CHOOSERS.items() if one.cost is not None]
        what = f"until does not go with choose {choose}, which has no cost of its own"
        raise SettingError(what, f"choose by {', '.join(others)} or {last}", setting="until")
    if calibrated is not None and not until:
        raise SettingError("calibrated has no effect without until", "give until, too", setting="calibrated")
    if most is not None and not until:
        raise SettingError("most has no effect without until", "give until, too", setting="most")
    if most is not None and most < particles:
        what = f"most is {most}, below the {particles} particles"
        raise SettingError(what, "give more, or fewer particles", setting="most")
    return Search(particles, choose=chooser, until=until, most=most)


def smc(
    particles: int = 5,
    every: int | None = None,
    strength: float | None = None,
    potential: str = "gibbs",
    scheme: str = "multinomial",
    target: float | None = None,
    below: float | None = None,
    reopen: float = 0.0,
    choose: str = "entropy",
) -> Search:
    """E-SMC: paths of low state entropy are copied over the others every few steps (Algorithm 1 as printed)."""
    if target is not None and strength is not None:
        raise SettingError(
            "strength and target exclude each other", "target solves the strength by itself", setting="strength"
        )
    if target is not None and below is not None:
        raise SettingError(
            "target and below exclude each other",
            "target brings the effective sample size to one value",
            setting="target",
        )
    if reopen and potential == "likelihood":
        why = "reopening takes unlikely tokens out of the log-probability that it weighs by"
        raise SettingError(f"reopen does not go with potential {potential}", f"{why}; use another", setting="reopen")
    return Search(
        particles,
        every,
        5.0 if strength is None else strength,
        _find("potential", potential, POTENTIALS),
        _find("scheme", scheme, SCHEMES),
        target,
        below,
        reopen=reopen,
        choose=_find("choose", choose, CHOOSERS),
    )


def _find(name: str, value: str, registry: Mapping[str, Value]) -> Value:
    if value not in registry:
        raise unknown(name, value, registry, setting=name)
    return registry[value]


def greedy(candidates: int = 5, every: int = 1, reopen: float = 0.0, choose: str = "entropy") -> Search:
    """Greedy search over entropy: one path grows into candidates, the one of lowest state entropy is kept."""
    return beam(1, candidates, every, reopen, choose)


def beam(beams: int = 2, candidates: int = 4, every: int = 1, reopen: float = 0.0, choose: str = "entropy") -> Search:
    """Beam search over entropy: each beam grows into candidates, the best beams by state entropy are kept."""
    chooser = _find("choose", choose, CHOOSERS)
    return Search(beams * candidates, every, beams=beams, reopen=reopen, choose=chooser)


def auto(
    particles: int = 5,
    until: float = 0.0,
    most: int | None = None,
    escalate: str | None = None,
    calibrated: str | None = None,
) -> Search:
    """Independent paths, the one of least surprise: low state entropies all along, and probable tokens."""
    if escalate is not None and not until:
        raise SettingError("escalate has no effect without until", "give until, too", setting="escalate")
    found = best_of_n(particles, "auto" if escalate is None else "look", until, most, calibrated)
    return replace(found, escalate=escalate)


def vote(particles: int = 5) -> Search:
    """Majority vote: independent paths, the most frequent answer."""
    return Search(particles, choose=CHOOSERS["vote"])


SEARCHES: dict[str, Callable[..., Search]] = {
    "vanilla": vanilla,
    "best-of-n": best_of_n,
    "smc": smc,
    "auto": auto,
    "greedy": greedy,
    "beam": beam,
    "vote": vote,
}
