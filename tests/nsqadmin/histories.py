"""An upstream whose nodes keep histories of given messages, and misbehave when they are told to."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, cast
from urllib.parse import parse_qs

import trio

from nsqadmin.cluster.model import Snapshot, TopicNode
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.messages.masking import Masking
from nsqadmin.messages.reading import Reader
from nsqadmin.messages.searching import Searcher
from nsqadmin.upstream.client import Streamed, Upstream, UpstreamError
from tests.support.picture import channel, node, snapshot, topic


@dataclass
class History:
    """What one node has: bodies by sequence, published one each second from `began` on."""

    bodies: list[bytes]
    began: float = 1_700_000_000.0
    pace: float = 1.0
    first: int = 0  # everything before was removed by retention
    hangs_from: int | None = None  # below this sequence it sends nothing any more
    most: int = 1 << 30  # messages of one answer
    expires_at_read: int = 0  # when it is read, everything before is removed
    log_id: str = "l1"
    headers: dict[str, str] = field(default_factory=dict)  # of each message
    read: list[tuple[int, int]] = field(default_factory=list)

    def log(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "next": len(self.bodies),
            "first_time": None,
            "last_time": None,
            "log": self.log_id,
        }

    def lines(self, start: int, end: int) -> list[bytes]:
        self.read.append((start, end))
        last = min(end, len(self.bodies), start + self.most)
        times = (int((self.began + self.pace * at) * 1e9) for at in range(start, last))
        lines = [
            {"id": f"{at:016x}", "sequence": at, "timestamp": time, "headers": self.headers, **written(self.bodies[at])}
            for at, time in zip(range(start, last), times, strict=True)
        ]
        return [json.dumps(line).encode() + b"\n" for line in [*lines, {"next": last}]]


def written(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


class Histories:
    """Stands in for `Upstream`, and records what is posted."""

    def __init__(
        self, decoders: Decoders | None = None, masking: Masking | None = None, /, **histories: History
    ) -> None:
        self._decoders = decoders
        self._masking = masking
        self.nodes = {f"{name}:4151": history for name, history in histories.items()}
        self.posted: list[tuple[str, str]] = []

    @property
    def picture(self) -> Snapshot:
        rows = tuple(TopicNode(node=address, has_log=True) for address in self.nodes)
        return snapshot(topic(channel(), nodes=rows), nodes=tuple(node(address) for address in self.nodes))

    @property
    def searcher(self) -> Searcher:
        return Searcher(self.reader())

    def reader(self, masking: Masking | None = None) -> Reader:
        return Reader(cast(Upstream, self), masking or self._masking or Masking(), self._decoders)

    async def get_json(self, address: str, target: str) -> Any:
        await trio.lowlevel.checkpoint()
        return self.nodes[address].log()

    @asynccontextmanager
    async def stream(self, address: str, target: str, **_: object) -> AsyncIterator[Streamed]:
        history = self.nodes[address]
        arguments = {name: values[0] for name, values in parse_qs(target.partition("?")[2]).items()}
        start = int(arguments["from"])
        end = int(arguments["to"]) if "to" in arguments else start + int(arguments["limit"])
        history.first = max(history.first, history.expires_at_read)
        if arguments.get("log", history.log_id) != history.log_id:
            yield Streamed(409, Pieces([b'{"message":"ANOTHER_LOG"}']))
        elif start < history.first:
            yield Streamed(410, Pieces([b'{"message":"GONE"}']))
        elif history.hangs_from is not None and start < history.hangs_from:
            history.read.append((start, end))
            await trio.sleep_forever()
        else:
            yield Streamed(200, Pieces(history.lines(start, end)))

    async def post(self, address: str, target: str, body: bytes = b"") -> bytes:
        await trio.lowlevel.checkpoint()
        if address not in self.nodes:
            raise UpstreamError("no answer")
        self.posted.append((address, target))
        return b"{}"


class Pieces:
    """An iterator that is not a generator, so it need not be closed."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = iter(lines)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        for line in self._lines:
            return line
        raise StopAsyncIteration
