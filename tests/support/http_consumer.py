"""A consumer without a connection, for tests: it takes messages over HTTP, and answers for their ids."""

from __future__ import annotations

import http.client
import json
import select
from base64 import b64decode
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from nsqcommon.wire.message import Message

TIMEOUT: Final = 70.0  # seconds; a poll may wait for 60


class HttpRefused(Exception):
    """The broker answered with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status


class HttpConsumer:
    """Speaks over one connection that is kept alive."""

    def __init__(self, address: tuple[str, int], topic: str, channel: str = "c", token: str = "") -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
        self._at = f"topic={topic}&channel={channel}".replace("#", "%23")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def take(self, most: int = 1, *, wait: str = "0", lease: str = "60s") -> list[Message]:
        """Return messages, at most so many."""
        lines = self._post("sub", f"max={most}&wait={wait}&lease={lease}")
        return [_message(line) for line in lines]

    def finish(self, ids: Iterable[bytes]) -> list[str]:
        """Return the errors."""
        return self.answer("fin", ids)

    def answer(self, verb: str, ids: Iterable[bytes], arguments: str = "") -> list[str]:
        """Return the errors."""
        return [*self.refused(verb, ids, arguments).values()]

    def refused(self, verb: str, ids: Iterable[bytes], arguments: str = "") -> dict[bytes, str]:
        """Return the errors by id."""
        lines = self._post(verb, arguments, b"\n".join(ids))
        return {line["id"].encode(): line["error"] for line in lines if "error" in line}

    def ask(self, verb: str, arguments: str = "") -> None:
        """Send a request, and do not read its answer."""
        self._connection.request("POST", f"/{verb}?{self._at}&{arguments}", headers=self._headers)

    def is_answered(self) -> bool:
        """Return whether the answer to `ask` is there."""
        return bool(select.select([self._connection.sock], [], [], 0)[0])

    def answered(self) -> tuple[int, bytes]:
        """Return status and body of the answer to `ask`."""
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _post(self, verb: str, arguments: str, body: bytes = b"") -> list[dict[str, Any]]:
        self._connection.request("POST", f"/{verb}?{self._at}&{arguments}", body, self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise HttpRefused(answer.status, said)
        return [json.loads(line) for line in said.splitlines()]


def _message(line: dict[str, Any]) -> Message:
    body = line["body"].encode() if "body" in line else b64decode(line["body_base64"])
    return Message(line["timestamp"], line["attempts"], line["id"].encode(), body)
