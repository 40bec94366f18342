"""Calls an ASGI application without a server or a loop: for handlers that never really wait."""

from __future__ import annotations

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
    path, _, query = target.partition("?")
    chunks = body if isinstance(body, list) else [body]
    sent_headers = {name.lower(): value for name, value in (headers or {}).items()}
    if not isinstance(body, list) and body:
        sent_headers.setdefault("content-length", str(len(body)))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode("latin-1"),
        "headers": [(name.encode(), value.encode()) for name, value in sent_headers.items()],
        "client": ("10.0.0.1", 5555),
        "http_version": "1.1",
    }
    read = 0
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": chunks[read - 1], "more_body": read < len(chunks)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    run(app(scope, receive, send))
    start, *rest = sent
    return Answer(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(message["body"] for message in rest),
        read,
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
