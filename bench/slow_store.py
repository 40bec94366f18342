"""An S3 server with objects in memory that answers after a set time: `python -m bench.slow_store PORT LATENCY SLOW`.

`LATENCY` is in milliseconds. `SLOW` of 1 creates take four times as long. It knows what nsqd asks for, and no signatures:
PUT with and without `If-None-Match: *`, GET with and without a range, POST ?delete, and lists. `GET /counts` says how many
requests of each method there were.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
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
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_KEY: Final = re.compile(rb"<Key>(.*?)</Key>")
_TEXTS: Final = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}
_TEXTS_OF_ERRORS: Final = {404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}

Answer = tuple[int, bytes, dict[str, str]]


class Objects:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        url = urlsplit(target)
        path, asked = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        if path == COUNTS:
            return 200, json.dumps(self.counts).encode(), {}
        self.counts[method] += 1
        if method == "PUT":
            if headers.get("if-none-match") == "*" and path in self.data:
                return _error(412)
            self.data[path] = body
            return 200, b"", {"ETag": '"1"'}
        if method == "POST" and "delete" in asked:
            keys = _KEY.findall(body)
            for key in keys:
                self.data.pop(f"{path.rstrip('/')}/{key.decode()}", None)
            deleted = b"".join(b"<Deleted><Key>%b</Key></Deleted>" % it for it in keys)
            return 200, b"<DeleteResult>%b</DeleteResult>" % deleted, {}
        if method == "DELETE":
            self.data.pop(path, None)
            return 204, b"", {}
        if "list-type" in asked:
            return self._names(path, {name: values[0] for name, values in asked.items()})
        return self._read(path, headers.get("range", ""))

    def _read(self, path: str, wanted: str) -> Answer:
        data = self.data.get(path)
        if data is None:
            return _error(404)
        about = {"ETag": '"1"', "Last-Modified": "Thu, 26 Nov 2026 00:00:00 GMT"}
        if (found := _RANGE.fullmatch(wanted)) is None:
            return 200, data, about
        start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
        if start >= len(data):
            return _error(416)
        return 206, data[start : end + 1], {**about, "Content-Range": f"bytes {start}-{end}/{len(data)}"}

    def _names(self, path: str, asked: dict[str, str]) -> Answer:
        bucket = f"{path.rstrip('/')}/"
        names = sorted(it[len(bucket) :] for it in self.data if it.startswith(bucket + asked.get("prefix", "")))
        after = asked.get("continuation-token") or asked.get("start-after") or ""
        names = names[bisect_right(names, after) :]
        page, is_cut = names[:_MOST_NAMES], len(names) > _MOST_NAMES
        contents = "".join(
            f"<Contents><Key>{escape(it)}</Key><Size>{len(self.data[bucket + it])}</Size>"
            "<LastModified>2026-11-26T00:00:00.000Z</LastModified></Contents>"
            for it in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        text = f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
        return 200, text.encode(), {}


def _error(status: int) -> Answer:
    return status, f"<Error><Code>{_TEXTS_OF_ERRORS[status]}</Code></Error>".encode(), {}


class Server:
    def __init__(self, latency: float, slow: float) -> None:
        self._objects = Objects()
        self._latency = latency
        self._slow = slow
        self._chance = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._serve_one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(_END)).decode().split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if target != COUNTS:
            is_slow = method == "PUT" and self._chance.random() < self._slow
            await asyncio.sleep(self._latency * (_SLOWER if is_slow else 1))
        status, data, about = self._objects.answer(method, target, headers, body)
        lines = [f"HTTP/1.1 {status} {_TEXTS.get(status, 'Error')}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in about.items()]
        writer.write(("\r\n".join(lines)).encode() + _END + (b"" if method == "HEAD" else data))


async def _run(port: int, latency: float, slow: float) -> None:
    server = await asyncio.start_server(Server(latency, slow).serve, "127.0.0.1", port, limit=1 << 24)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3])))
