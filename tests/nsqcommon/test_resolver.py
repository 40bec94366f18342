"""Name resolution, with a C library that behaves as a test tells it."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import trio

from nsqcommon.resolver import Resolver
from tests.support.client import TIMEOUT

if TYPE_CHECKING:
    import pytest

HANGING = 100  # lookups, more than trio has threads


def test_names_that_nobody_answers_for_keep_no_thread_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def hang(*arguments: object) -> list[Any]:
        end.wait(30)
        return []

    async def main() -> str:
        trio.socket.set_custom_hostname_resolver(Resolver())
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as nursery:
                for number in range(HANGING):
                    nursery.start_soon(trio.socket.getaddrinfo, f"host-{number}.invalid", 80)
        with trio.fail_after(TIMEOUT):
            return await trio.to_thread.run_sync(lambda: "synced")

    numeric = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *them: numeric(*them) if len(them) > 5 and them[5] else hang(*them)
    )
    try:
        assert trio.run(main) == "synced"
    finally:
        end.set()


def test_a_name_has_the_addresses_that_the_system_says() -> None:
    async def main() -> object:
        trio.socket.set_custom_hostname_resolver(Resolver())
        return await trio.socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)

    assert trio.run(main) == socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
