"""Calls an ASGI application without a server or a loop: for handlers that never really wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

App = Callable[..., Coroutine[Any, Any, None]]
_MOST_TURNS: Final = 10_000


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    read: int  # number of pieces of the body that the application has read


async def run_directly(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Stands in for `nsqcommon.web.run_trio`."""
    return await function(*arguments)


def ask(
    app: App,
    method: str,
    target: str,
    body: bytes | list[bytes] = b"",
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request. A list of bodies is sent as chunks, without Content-Length."""
    exchange = Exchange(method, target, body, headers)
    run(app(exchange.scope, exchange.receive, exchange.send))
    return exchange.answer()


async def ask_in_loop(app: App, method: str, target: str, *, is_gone: asyncio.Event | None = None) -> Answer | None:
    """Send one request in a loop, for handlers that wait. Return None if there is no answer, as the client `is_gone`."""
    exchange = Exchange(method, target, b"", None, is_gone or asyncio.Event())
    await app(exchange.scope, exchange.receive, exchange.send)
    return exchange.answer() if exchange.sent else None


class Exchange:
    """One request, and what was sent to answer it. After the body, the client waits until `is_gone`, if given."""

    def __init__(
        self,
        method: str,
        target: str,
        body: bytes | list[bytes],
        headers: dict[str, str] | None,
        is_gone: asyncio.Event | None = None,
    ) -> None:
        path, _, query = target.partition("?")
        self._chunks = body if isinstance(body, list) else [body]
        self._read = 0
        self._is_gone = is_gone
        self.sent: list[MutableMapping[str, Any]] = []
        sent_headers = {name.lower(): value for name, value in (headers or {}).items()}
        if not isinstance(body, list) and body:
            sent_headers.setdefault("content-length", str(len(body)))
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "headers": [(name.encode(), value.encode()) for name, value in sent_headers.items()],
            "client": ("10.0.0.1", 5555),
            "http_version": "1.1",
        }

    async def receive(self) -> dict[str, Any]:
        if self._is_gone is not None and self._read == len(self._chunks):
            await self._is_gone.wait()
            return {"type": "http.disconnect"}
        self._read += 1
        return {
            "type": "http.request",
            "body": self._chunks[self._read - 1],
            "more_body": self._read < len(self._chunks),
        }

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    def answer(self) -> Answer:
        start, *rest = self.sent
        return Answer(
            start["status"],
            {name.decode(): value.decode() for name, value in start["headers"]},
            b"".join(message["body"] for message in rest),
            self._read,
        )


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run an application that never really waits. It may yield to others, which is a bare `yield` to the loop."""
    for _ in range(_MOST_TURNS):
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return
        if waits_for is not None:
            break
    coroutine.close()
    raise AssertionError("the application waited for something")
