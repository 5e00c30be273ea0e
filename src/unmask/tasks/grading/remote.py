"""The text of an answer -> its functions, which run in a process of their own and give data only.

The text of this file goes into the programs that a sandbox runs: it imports the standard library only. The tests run in
the first process. It starts the second, which reads the answer, and calls, from a pipe: nothing of the tests, of their
references or of the proof is ever in it. What comes back is plain values, built anew by a reader of pickles that knows
no class; any other object stays where it is, and the tests have a `Remote` of it, which equals nothing but itself.
"""

from __future__ import annotations

import builtins
import os
import sys
from _pickle import Pickler, Unpickler, UnpicklingError  # pickle itself, without the modules that it loads besides
from collections import deque

TYPE_CHECKING = False  # typing's own, whose import takes as long as everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO, NoReturn

PLAIN: tuple[Any, ...] = (
    str,
    int,
    float,
    tuple,
    list,
    dict,
    set,
    frozenset,
    bytes,
    bytearray,
)  # subclasses are sent so


def exact(name: str) -> Any:
    """Decimal or Fraction, which few answers load."""
    return getattr(__import__({"Decimal": "decimal", "Fraction": "fractions"}[name]), name)


MADE: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (complex, range, deque)},
    "Decimal": lambda text: exact("Decimal")(text),
    "Fraction": lambda text: exact("Fraction")(text),
    "plain": lambda value: value,
}


class Maker:
    """The only callable that a pickle may name: it has no attributes that one could set."""

    __slots__ = ("other",)
    other: Callable[[int], Any]

    def __init__(self, other: Callable[[int], Any]) -> None:
        object.__setattr__(self, "other", other)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(name)

    def __call__(self, kind: str, *given: Any) -> Any:
        return self.other(*given) if kind == "object" else MADE[kind](*given)


MAKE = object  # stands for the Maker in a pickle: a name that is there in every process


class Writer(Pickler):
    """Plain values as they are, subclasses as what they derive from; `place` numbers other objects."""

    def __init__(self, file: BinaryIO, place: Callable[[Any], int]) -> None:
        super().__init__(file, protocol=4)
        self.place = place

    def reducer_override(self, value: Any) -> Any:
        if value is MAKE:
            return NotImplemented  # by its name
        if isinstance(value, complex):
            return MAKE, ("complex", value.real, value.imag)
        if isinstance(value, range):
            return MAKE, ("range", value.start, value.stop, value.step)
        if isinstance(value, deque):
            return MAKE, ("deque", list(value), value.maxlen)
        for name in ("Decimal", "Fraction"):
            if type(value).__name__ == name and isinstance(value, exact(name)):
                return MAKE, (name, str(value))
        for kind in PLAIN:
            if isinstance(value, kind):
                plain = "".join(str.__iter__(value)) if kind is str else kind(value)
                return MAKE, ("plain", plain)
        return MAKE, ("object", self.place(value))


class Reader(Unpickler):
    """The values of a Writer; `other` finds the objects that stayed where they were."""

    def __init__(self, file: BinaryIO, other: Callable[[int], Any]) -> None:
        super().__init__(file)
        self.maker = Maker(other)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("builtins", "object"):
            raise UnpicklingError(f"{module}.{name} is not data")
        return self.maker


# --- the process of the answer ---------------------------------------------------------------------------------------


def serve(read: int, write: int) -> None:
    """Run the answer that is read first, then one call after the other."""
    sys.path[:] = [path for path in sys.path if path]
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    names: dict[str, Any] = {"__builtins__": builtins}
    held: list[Any] = []
    places: dict[int, int] = {}  # by identity

    def place(value: Any) -> int:
        if id(value) not in places:
            places[id(value)] = len(held)
            held.append(value)
        return places[id(value)]

    acts: dict[str, Callable[..., Any]] = {
        "run": lambda source: exec(compile(source, "answer", "exec", dont_inherit=True), names),
        "names": lambda: [name for name in names if isinstance(name, str)],
        "name": lambda name: names[name],
        "call": lambda function, given, named: function(*given, **named),
        "get": getattr,
        "set": setattr,
        "item": lambda value, place: value[place],
        "iter": iter,
        "next": next,
        "len": len,
    }
    with os.fdopen(read, "rb") as asked, os.fdopen(write, "wb") as said:
        while asked.peek(1):
            try:
                act, *given = Reader(asked, held.__getitem__).load()
                answer = True, acts[act](*given)
            except BaseException as error:
                answer = False, (type(error).__name__, _told(error))
            Writer(said, place).dump(answer)
            said.flush()


def _told(error: BaseException) -> str:
    try:
        return "".join(str.__iter__(str(error)))[:1000]
    except BaseException:
        return ""


# --- the process of the tests ----------------------------------------------------------------------------------------


class Remote:
    """An object in the process of the answer. It is equal to itself only, whatever it would say."""

    __slots__ = ("_answer", "_place")

    def __init__(self, answer: Answer, place: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_place", place)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._answer.ask("call", self, given, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._answer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask("set", self, name, value)

    def __getitem__(self, place: Any) -> Any:
        return self._answer.ask("item", self, place)

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._answer.ask("iter", self)
        return found

    def __next__(self) -> Any:
        return self._answer.ask("next", self)

    def __len__(self) -> int:
        return int(self._answer.ask("len", self))

    def __bool__(self) -> bool:
        return True


class Answer:
    """The second process, with the answer in it."""

    def __init__(self, source: str, server: str) -> None:
        down, up = os.pipe(), os.pipe()
        _hide()
        try:
            child = os.fork()
        except OSError:  # a sandbox without processes: the answer runs beside the tests, and still gives data only
            import threading

            threading.Thread(target=serve, args=(down[0], up[1]), daemon=True).start()
        else:
            if not child:
                _become(server, down[0], up[1])
            os.close(down[0])
            os.close(up[1])
        self.asking: BinaryIO = os.fdopen(down[1], "wb")
        self.saying: BinaryIO = os.fdopen(up[0], "rb")
        self.known: dict[int, Remote] = {}
        self.ask("run", source)
        self.names = frozenset(name for name in self.ask("names") if type(name) is str)

    def ask(self, *given: Any) -> Any:
        """What the answer makes of it: plain values and Remotes, or an exception."""
        Writer(self.asking, self._sent).dump(given)
        self.asking.flush()
        good, value = Reader(self.saying, self._remote).load()
        if good is True:
            return value
        kind, text = map(str, value)
        raised: Any = getattr(builtins, kind, None)
        known = isinstance(raised, type) and issubclass(raised, Exception) and not issubclass(raised, UnicodeError)
        raise raised(text) if known else RuntimeError(f"{kind}: {text}")

    def _sent(self, value: Any) -> int:
        if type(value) is not Remote:
            raise TypeError(f"a {type(value).__name__} cannot be given to the answer")
        place: int = value._place
        return place

    def _remote(self, place: int) -> Remote:
        return self.known.setdefault(place, Remote(self, place))


def _hide() -> None:
    """No other process of this account may look into this one, where no filter forbids it anyway."""
    _prctl(4, 0)  # PR_SET_DUMPABLE


def _prctl(what: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)
    except Exception:  # Python without ctypes
        return


def _become(server: str, read: int, write: int) -> NoReturn:
    """In the child: a new interpreter with two pipes and nothing else."""
    try:
        _prctl(1, 9)  # PR_SET_PDEATHSIG: it is killed with the tests; in a sandbox the guard sees to it
        nothing = os.open("/dev/null", os.O_RDWR)
        kept = [os.dup(descriptor) for descriptor in (nothing, nothing, nothing, read, write)]
        for place, descriptor in enumerate(kept):
            os.dup2(descriptor, place)
            os.set_inheritable(place, True)  # where it was in its place already
        os.closerange(5, 256)
        flags = ["-s", "-S", "-B", "-X", "utf8"]
        os.execv(sys.executable, [sys.executable, *flags, "-c", f"{server}\nserve(3, 4)\n"])
    finally:
        os._exit(126)
