"""nsqd in a thread of the test's own process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from nsqcommon.options import parse
from nsqd.daemon import run
from nsqd.options import Options

if TYPE_CHECKING:
    from nsqd.drain import Drain
    from nsqd.listeners import OpenListeners

_Addresses = tuple[str, str]  # host:port for TCP, and for HTTP


@contextmanager
def running_nsqd(folder: Path) -> Iterator[_Addresses]:
    """Run nsqd until the end of the block, and yield its addresses."""
    nsqd = _BrokerThread(folder)
    thresholds, thread = gc.get_threshold(), threading.Thread(target=nsqd.run, name="nsq_broker", daemon=True)
    thread.start()
    try:
        yield nsqd.started()
    finally:
        nsqd.end()
        thread.join()
        gc.set_threshold(*thresholds)  # a broker sets its own
        gc.unfreeze()
    if nsqd.error is not None:
        raise nsqd.error


class _BrokerThread:
    def __init__(self, folder: Path) -> None:
        self.error: BaseException | None = None
        self._folder = folder
        self._is_settled = threading.Event()
        self._addresses: _Addresses | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._end = trio.Event()

    def started(self) -> _Addresses:
        self._is_settled.wait()
        if self._addresses is None:
            assert self.error is not None
            raise self.error
        return self._addresses

    def end(self) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._end.set)
            except trio.RunFinishedError:
                pass

    def run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self.error = error
        finally:
            self._is_settled.set()

    async def _live(self) -> None:
        flags = [f"--data-path={self._folder}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
        options = parse(Options, flags, {}, "nsqd")
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            serve: Any = partial(run, options, wait_for_shutdown=self._end.wait, watch_drain_signal=_never)
            listening: OpenListeners = await nursery.start(serve)
            assert listening.http is not None
            self._addresses = _name(listening.tcp), _name(listening.http)
            self._is_settled.set()


async def _never(drain: Drain, *, task_status: trio.TaskStatus[None]) -> None:
    """Wait forever, because threads receive no signals."""
    task_status.started()
    await trio.sleep_forever()


def _name(listener: Any) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"
