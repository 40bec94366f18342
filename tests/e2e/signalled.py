"""Runs a program's entry point, and sends it a signal at a chosen moment of its start.

`signalled.py SIGNAL MOMENT MODULE:FUNCTION PROGRAM ARGUMENTS...`

A moment is a number of audit events (imports, files that are opened, sockets, ...), which does not depend on how busy the
machine is. They are counted from the first import that does work: whatever comes before is the interpreter's own start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final

SENT: Final = b"the signal is sent\n"  # on stderr
# Entry points, and what these import before they can hold signals.
LIGHT: Final = frozenset(
    ("nsqcommon", "nsqcommon.entry", *(f"{it}{end}" for it in ("nsqd", "nsqlookupd", "nsqadmin", "nsqtools", "nsqpipe") for end in ("", ".cli", ".entry")))
)  # fmt: skip


def send_at(moment: int, number: int) -> Callable[[], None]:
    """Send the signal at this moment, unless the program has ended by then: call what is returned when it has."""
    seen = -1  # before the first import that does work

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if seen < 0 and not (event == "import" and _is_work(str(arguments[0]))):
            return
        seen += 1
        if seen == moment:
            seen += 1  # importing and calling cause further events
            os.write(2, SENT)
            os.kill(os.getpid(), number)

    def has_ended() -> None:
        nonlocal seen
        seen = moment + 1

    sys.addaudithook(look)
    return has_ended


def _is_work(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names and module not in LIGHT


def main() -> None:
    number, moment, target, *sys.argv = sys.argv[1:]
    module, _, function = target.partition(":")
    has_ended = send_at(int(moment), int(number))
    try:
        getattr(import_module(module), function)()
    finally:
        has_ended()


if __name__ == "__main__":
    main()
