"""A token and a program on descriptor 3 -> the program runs as `__main__`; the token goes to descriptor 4 at its end.

This is the whole of what runs inside the sandbox besides the program: the guard gives its text to a new interpreter.
"""

from __future__ import annotations


def main(copied: bool) -> None:
    """Run the program; say on descriptor 4 that it began, that memory ran out, or, with the token, that it is done."""
    import _sitebuiltins
    import builtins
    import contextlib
    import os
    import sys
    from types import ModuleType

    # The program may replace any of these names in their modules.
    write, leave, process, flushers = os.write, os._exit, os.getpid, (sys.stdout, sys.stderr)
    show, suppress, me = sys.__excepthook__, contextlib.suppress, os.getpid()

    def end(status: int, word: bytes) -> None:
        try:
            for stream in (sys.stdout, sys.stderr, *flushers):
                with suppress(BaseException):
                    stream.flush()
            if process() == me and word:  # a forked copy of the program proves nothing
                write(4, word)
        finally:
            leave(status)

    with open(3, "rb") as file:
        token, text = file.read(32), file.read()
    if copied:
        with suppress(OSError), open("program.py", "wb") as copy:
            copy.write(text)  # for tracebacks that show lines
    for name in ("exit", "quit"):  # as without -S
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.argv, sys.path = ["program.py"], [path for path in sys.path if path]
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__="program.py")
    sys.modules["__main__"] = module
    write(4, b"began ")
    try:
        code = compile(text.decode("utf-8", "surrogatepass"), "program.py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except BaseException as error:
        try:
            traceback = error.__traceback__ and error.__traceback__.tb_next  # without this function
            show(type(error), error.with_traceback(traceback), traceback)
        finally:
            end(1, b"memory" if isinstance(error, MemoryError) else b"")
    end(0, token)
