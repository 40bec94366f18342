"""An S3 server with objects in memory that answers after a set time: `python -m bench.slow_store PORT LATENCY SLOW`.

`LATENCY` is in milliseconds. `SLOW` of 1 creates take four times as long. It knows what nsqd asks for, and no signatures:
PUT with and without `If-None-Match: *`, GET with and without a range, POST ?delete, and lists. `GET /counts` says how many
requests of each method there were.

It shares the machine's cores with what is measured, so it takes as little of them as it can. Of a large object it keeps the
beginning only: to keep it all would cost more than everything else here, because of the new memory. Nothing that is measured
reads the rest, and a request for it gets an error.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import selectors
import socket
import sys
from bisect import bisect_right
from collections import Counter
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

COUNTS: Final = "/counts"
_SLOWER: Final = 4  # times
_END: Final = b"\r\n\r\n"
_MOST_NAMES: Final = 1000
_LARGE: Final = 64 << 10  # bytes; objects up to this size are kept whole
_MOST_HEAD: Final = 16 << 10  # bytes
_ROOM: Final = 512 << 10  # bytes that are received at once
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_KEY: Final = re.compile(rb"<Key>(.*?)</Key>")
_TEXTS: Final = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}
_TEXTS_OF_ERRORS: Final = {404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 501: "NotKept"}

Answer = tuple[int, bytes, dict[str, str]]


class Objects:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}  # the beginning of each object
        self.sizes: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes, size: int) -> Answer:
        """Answer a request of whose body, `size` bytes, the beginning is here."""
        url = urlsplit(target)
        path, asked = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        if path == COUNTS:
            return 200, json.dumps(self.counts).encode(), {}
        self.counts[method] += 1
        if method == "PUT":
            if headers.get("if-none-match") == "*" and path in self.data:
                return _error(412)
            self.data[path], self.sizes[path] = body, size
            return 200, b"", {"ETag": '"1"'}
        if method == "POST" and "delete" in asked:
            keys = _KEY.findall(body)
            for key in keys:
                self._delete(f"{path.rstrip('/')}/{key.decode()}")
            deleted = b"".join(b"<Deleted><Key>%b</Key></Deleted>" % it for it in keys)
            return 200, b"<DeleteResult>%b</DeleteResult>" % deleted, {}
        if method == "DELETE":
            self._delete(path)
            return 204, b"", {}
        if "list-type" in asked:
            return self._names(path, {name: values[0] for name, values in asked.items()})
        return self._read(path, headers.get("range", ""))

    def _delete(self, path: str) -> None:
        self.data.pop(path, None)
        self.sizes.pop(path, None)

    def _read(self, path: str, wanted: str) -> Answer:
        data = self.data.get(path)
        if data is None:
            return _error(404)
        size = self.sizes[path]
        about = {"ETag": '"1"', "Last-Modified": "Thu, 26 Nov 2026 00:00:00 GMT"}
        found = _RANGE.fullmatch(wanted)
        start, end = (int(found[1]), min(int(found[2] or size), size - 1)) if found is not None else (0, size - 1)
        if found is not None and start >= size:
            return _error(416)
        if end >= len(data):
            return _error(501)
        if found is None:
            return 200, data, about
        return 206, data[start : end + 1], {**about, "Content-Range": f"bytes {start}-{end}/{size}"}

    def _names(self, path: str, asked: dict[str, str]) -> Answer:
        bucket = f"{path.rstrip('/')}/"
        names = sorted(it[len(bucket) :] for it in self.data if it.startswith(bucket + asked.get("prefix", "")))
        after = asked.get("continuation-token") or asked.get("start-after") or ""
        names = names[bisect_right(names, after) :]
        page, is_cut = names[:_MOST_NAMES], len(names) > _MOST_NAMES
        contents = "".join(
            f"<Contents><Key>{escape(it)}</Key><Size>{self.sizes[bucket + it]}</Size>"
            "<LastModified>2026-11-26T00:00:00.000Z</LastModified></Contents>"
            for it in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        text = f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
        return 200, text.encode(), {}


def _error(status: int) -> Answer:
    return status, f"<Error><Code>{_TEXTS_OF_ERRORS[status]}</Code></Error>".encode(), {}


class Connection(asyncio.BufferedProtocol):
    """Answers the requests of one connection, one after the other."""

    _transport: asyncio.Transport

    def __init__(self, objects: Objects, latency: float, slow: float, chance: random.Random) -> None:
        self._objects = objects
        self._latency = latency
        self._slow = slow
        self._chance = chance
        self._room = memoryview(bytearray(_ROOM))
        self._filled = 0
        self._head: tuple[str, str, dict[str, str]] | None = None  # None: it isn't complete
        self._body = b""  # what is kept of it
        self._size = 0
        self._missing = 0
        self._wakes_at = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        body = self._room[: self._filled]
        if self._head is None:
            head, end, _ = bytes(body[:_MOST_HEAD]).partition(_END)
            if not end:
                return
            self._take_head(head.decode())
            body = body[len(head) + len(end) :]
        self._filled = 0
        self._missing -= len(body)
        if len(self._body) < _LARGE:
            self._body += body[: _LARGE - len(self._body)]
        if not self._missing:
            self._take_request()
        self._wake_at(max(1, min(self._missing, _ROOM)))

    def _wake_at(self, size: int) -> None:
        """Have the system wait for so many bytes before it wakes us. Otherwise a large body would do that dozens of times."""
        if size != self._wakes_at:
            self._wakes_at = size
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _take_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("expect"):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = method, target, headers
        self._body = b""
        self._size = self._missing = int(headers.get("content-length", 0))

    def _take_request(self) -> None:
        assert self._head is not None
        method, target, headers = self._head
        self._head = None
        latency = 0.0
        if target != COUNTS:
            is_slow = method == "PUT" and self._chance.random() < self._slow
            latency = self._latency * (_SLOWER if is_slow else 1)
        asyncio.get_running_loop().call_later(latency, self._answer, method, target, headers)

    def _answer(self, method: str, target: str, headers: dict[str, str]) -> None:
        status, data, about = self._objects.answer(method, target, headers, self._body, self._size)
        lines = [f"HTTP/1.1 {status} {_TEXTS.get(status, 'Error')}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in about.items()]
        self._transport.write("\r\n".join(lines).encode() + _END + (b"" if method == "HEAD" else data))


async def _run(port: int, latency: float, slow: float) -> None:
    objects, chance = Objects(), random.Random(7)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(objects, latency, slow, chance), "127.0.0.1", port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    # The usual selector rounds each wait up to the next millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_run(int(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3])))
