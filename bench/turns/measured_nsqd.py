"""nsqd with a meter in its event loop: `python measured_nsqd.py METER ROUTES` and nsqd's own arguments.

A turn is what the loop does between two looks at its sockets. Its processor time is what everybody else waits for on a
machine that has nothing else to do; neither a slow disk nor a busy neighbour counts. ROUTES gets the table of routes.
The measured nsqd itself knows nothing of this: trio has a place for such instruments.
"""

from __future__ import annotations

import gc
import json
import mmap
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from struct import Struct
from threading import Thread, main_thread
from time import sleep, thread_time
from typing import Any, Final

import trio

LAYOUT: Final = Struct("=Qdd160s")  # turns so far, the longest in seconds, garbage collection in it, what ran in it
_LOOK_INTERVAL: Final = 0.004  # seconds


class Meter(trio.abc.Instrument):
    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), LAYOUT.size)
        self._turns = 0
        self._began = self._collecting = self._collected = 0.0
        self._where = ""
        gc.callbacks.append(self._note_collection)
        Thread(target=self._look, daemon=True).start()

    def after_io_wait(self, timeout: float) -> None:
        self._collected, self._where = 0.0, ""
        self._began = thread_time()

    def before_io_wait(self, timeout: float) -> None:
        took = thread_time() - self._began
        self._turns += 1
        _, longest, collected, where = LAYOUT.unpack_from(self._shared)
        if took > longest:
            longest, collected, where = took, self._collected, self._where.encode()
        LAYOUT.pack_into(self._shared, 0, self._turns, longest, collected, where)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = thread_time()
        else:
            self._collected += thread_time() - self._collecting

    def _look(self) -> None:
        """Note now and then which function the loop is in. Of compiled functions only the callers are seen."""
        loop, turns = main_thread().ident, -1
        while True:
            sleep(_LOOK_INTERVAL)
            if turns == self._turns and (frame := sys._current_frames().get(loop or 0)) is not None:
                self._where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
            turns = self._turns


def main(meter: str, routes: str, *arguments: str) -> None:
    from nsqd import cli
    from nsqd.http import make_app

    daemon = import_module("nsqd.daemon")

    def noting(*given: Any, **named: Any) -> Any:
        app = make_app(*given, **named)
        Path(routes).write_text(json.dumps([f"{route.method} {route.path}" for route in app.routes]))
        return app

    run = partial(trio.run, instruments=[Meter(Path(meter))])
    for module, name, instead in ((trio, "run", run), (daemon, "make_app", noting)):
        setattr(module, name, instead)
    sys.argv[1:] = arguments
    cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
