"""The pytest plugin `nsq`: a real broker in the process of the test, on free ports, with a temporary data path.

    def test_a_published_message_is_there(nsq_broker):
        with nsqclient.sync.producer(nsq_broker.tcp_address) as producer:
            producer.publish("orders", b"one")

Each test that uses `nsq_broker` has a broker of its own. The broker itself is part of the same distribution.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

if TYPE_CHECKING:
    from nsqd.drain import Drain
    from nsqd.listeners import Listening


@dataclass(frozen=True, slots=True)
class Broker:
    """The addresses of a running broker, host:port, for TCP and for HTTP."""

    tcp_address: str
    http_address: str


@pytest.fixture
def nsq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a real nsqd for this test only."""
    with running_broker(tmp_path_factory.mktemp("nsqd")) as broker:
        yield broker


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """Run a real nsqd in a thread, with its data in `folder`, for as long as the block runs."""
    broker_thread = _BrokerThread(folder)
    thresholds, thread = gc.get_threshold(), threading.Thread(target=broker_thread.run, name="nsq_broker", daemon=True)
    thread.start()
    try:
        yield broker_thread.started()
    finally:
        broker_thread.end()
        thread.join()
        gc.set_threshold(*thresholds)  # a broker sets its own
        gc.unfreeze()
    if broker_thread.error is not None:
        raise broker_thread.error


class _BrokerThread:
    def __init__(self, folder: Path) -> None:
        self.error: BaseException | None = None
        self._folder = folder
        self._is_settled = threading.Event()
        self._broker: Broker | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._end = trio.Event()

    def started(self) -> Broker:
        self._is_settled.wait()
        if self._broker is None:
            assert self.error is not None
            raise self.error
        return self._broker

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
        # Imported here, so that runs of pytest that do not use the fixture do not load the broker.
        from nsqcommon.options import parse
        from nsqd.daemon import run
        from nsqd.options import Options

        flags = [f"--data-path={self._folder}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
        options = parse(Options, flags, {}, "nsqd")
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            serve: Any = partial(run, options, wait_for_shutdown=self._end.wait, heed_drain_signal=_never)
            listening: Listening = await nursery.start(serve)
            assert listening.http is not None
            self._broker = Broker(*(_name(it) for it in (listening.tcp, listening.http)))
            self._is_settled.set()


async def _never(drain: Drain, *, task_status: trio.TaskStatus[None]) -> None:
    """Wait for ever: a thread receives no signals."""
    task_status.started()
    await trio.sleep_forever()


def _name(listener: Any) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"
