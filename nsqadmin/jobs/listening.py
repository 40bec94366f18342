"""Listens to what workers report, on every node that has their topic, through an ephemeral channel of our own.

The topic is ephemeral, too, so a channel that leaves takes nothing from anyone. Each nsqadmin has its own channel. Nodes
come and go with the snapshots, and without the topic nothing is connected.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.cluster.model import TAIL_PREFIX
from nsqadmin.upstream.subscription import CLOSED, Refused, Subscription
from nsqcommon.job_reports import TOPIC, JobReport, decode
from nsqcommon.wire.frames import BadFrame

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node, Snapshot

log = logging.getLogger(__name__)

_MOST: Final = 4 << 20  # bytes of a frame; a worker sends at most a quarter of a megabyte
_PAUSE: Final = 1.0  # seconds before we connect to a node again
_CONNECT_TIMEOUT: Final = 10.0
_HEARTBEATS: Final = 10.0  # seconds between two of them
_PATIENCE: Final = 2.5 * _HEARTBEATS  # without anything from a node: it hangs
_OPTIONS: Final = {"heartbeat_interval": round(_HEARTBEATS * 1000)}


class Listener:
    """`told` gets each report, in trio's thread."""

    def __init__(self, told: Callable[[JobReport], None], *, patience: float = _PATIENCE) -> None:
        self.channel: Final = f"{TAIL_PREFIX}jobs_{secrets.token_hex(6)}#ephemeral"
        self.troubles: dict[str, str] = {}  # nodes with the topic that we can't listen to, and why
        self._told = told
        self._patience = patience
        self._wanted: dict[str, Node] = {}
        self._followed: set[str] = set()
        self._news = trio.Event()

    def see(self, snapshot: Snapshot) -> None:
        """Take the nodes that have the topic now."""
        topic = snapshot.topic(TOPIC)
        having = {row.node for row in topic.nodes} if topic is not None else set()
        self._wanted = {it.address: it for it in snapshot.nodes if it.address in having and it.is_reachable}
        if self._wanted.keys() - self._followed:
            self._news.set()

    async def run(self) -> None:
        """Follow the nodes until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for address, node in self._wanted.items():
                    if address not in self._followed:
                        self._followed.add(address)
                        nursery.start_soon(self._follow, node)
                await self._news.wait()
                self._news = trio.Event()

    async def _follow(self, node: Node) -> None:
        """Listen to one node as long as it has the topic."""
        try:
            while (wanted := self._wanted.get(node.address)) is not None:
                try:
                    await self._listen(wanted)
                except (OSError, trio.BrokenResourceError, BadFrame, ValueError, Refused) as error:
                    self._note(node.address, str(error) or type(error).__name__)
                except trio.TooSlowError:
                    self._note(node.address, "it does not answer")
                except Exception:  # our bug: it ends this connection, and not nsqadmin
                    log.exception("failed to listen to reports about jobs node=%s", node.address)
                    self.troubles[node.address] = "nsqadmin has failed: see its log"
                await trio.sleep(_PAUSE)
        finally:
            self._followed.discard(node.address)
            self.troubles.pop(node.address, None)

    def _note(self, node: str, reason: str) -> None:
        if self.troubles.get(node) != reason:
            log.warning("cannot listen to reports about jobs node=%s: %s", node, reason)
        self.troubles[node] = reason

    async def _listen(self, node: Node) -> None:
        with trio.fail_after(_CONNECT_TIMEOUT):
            stream = await trio.open_tcp_stream(node.broadcast_address, node.tcp_port)
        asked = Subscription(TOPIC, self.channel, "nsqadmin-jobs", _OPTIONS, longest=_MOST)
        async with stream:
            while True:
                if owed := asked.bytes_to_send():
                    await stream.send_all(owed)
                with trio.fail_after(self._patience):
                    data = await stream.receive_some()
                if not data:
                    break
                self.troubles.pop(node.address, None)
                for message in asked.receive(data):
                    self._read(message.body)
                    await trio.lowlevel.checkpoint()  # a full report takes some milliseconds
        if node.address in self._wanted:
            raise Refused(CLOSED)

    def _read(self, body: bytes | bytearray | memoryview) -> None:
        try:
            report = decode(body)
        except ValueError as error:
            log.debug("not a report about jobs: %s", error)
            return
        self._told(report)
