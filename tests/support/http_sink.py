"""An HTTP server that keeps the requests, and answers with the status that a test tells it."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.http_server import HttpServer, Reply, Request


class HttpSink(HttpServer):
    """`answer` returns the status for each request, in the thread that serves it; `content` is the answer's body."""

    def __init__(
        self,
        answer: Callable[[Request], int] = lambda request: 200,
        *,
        content: bytes = b"ok",
        backlog: int = 256,
        port: int = 0,
    ) -> None:
        super().__init__(backlog=backlog, port=port)
        self.answer = answer
        self.content = content

    def reply(self, request: Request) -> Reply:
        status = self.answer(request)
        return Reply(status, self.content, {"Location": "/elsewhere"} if status in (301, 307) else {})

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]
