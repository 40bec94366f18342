"""A proxy in front of one node for two programs that take turns: the second one gets the first one's answers.

A POST may change later answers, so with each POST a program begins a new chapter of answers. Two programs that behave
alike therefore see the same cluster, although the first one has changed it and time has passed. If only the second one
asks a question, it goes to the node, so let the two run close together. The spelling of a query makes no difference.
"""

from __future__ import annotations

import http.client
import threading
import time
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.support.http_server import HttpServer, Reply, Request

_OF_A_CONNECTION: Final = frozenset({"connection", "content-length", "date", "host", "keep-alive", "transfer-encoding"})
_LONG: Final = 1.0  # seconds; if an answer took longer, it waited for something, so we take as long to repeat it
_LIMIT: Final = 60.0

_Question = tuple[int, str, str, bytes]  # chapter, method, path with query, body


class Recorder(HttpServer):
    def __init__(self, name: str) -> None:
        super().__init__(keeps_requests=False)
        self.name = name
        self.upstream: tuple[str, int] = ("", 0)  # known once the node has started
        self.side = 0  # whose turn it is
        self._chapters = [0, 0]
        self._questions: tuple[set[_Question], set[_Question]] = set(), set()
        self._answers: dict[_Question, tuple[Reply, float]] = {}
        self._locks: dict[_Question, threading.Lock] = {}

    def asked_only_by(self, side: int) -> list[str]:
        """Return the questions that the other side has never asked."""
        own, others = (
            {(method, asked) for _, method, asked, _ in it} for it in (self._questions[side], self._questions[1 - side])
        )
        return sorted(f"{self.name}: {method} {asked}" for method, asked in own - others)

    def reply(self, request: Request) -> Reply:
        side = self.side
        asked = f"{request.path}?{urlencode(sorted(parse_qsl(urlsplit(request.target).query)))}"  # no empty arguments
        question = (self._chapters[side], request.method, asked, request.body)
        self._questions[side].add(question)
        if request.method == "POST":
            self._chapters[side] += 1
        with self._locks.setdefault(question, threading.Lock()):
            if known := self._answers.get(question):
                reply, took = known
                if took > _LONG:
                    time.sleep(took)
                return reply
            began = time.monotonic()
            reply = self._ask(request)
            self._answers[question] = reply, time.monotonic() - began
            return reply

    def _ask(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection(*self.upstream, timeout=_LIMIT)
        try:
            headers = {name: it for name, it in request.headers.items() if name not in _OF_A_CONNECTION}
            connection.request(request.method, request.target, request.body, headers)
            answer = connection.getresponse()
            body = answer.read()
            kept = {name: it for name, it in answer.getheaders() if name.lower() not in _OF_A_CONNECTION}
            return Reply(answer.status, body, kept)
        finally:
            connection.close()
