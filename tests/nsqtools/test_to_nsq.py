"""to_nsq: the group of its records."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from nsqcommon.options import UsageError, read_flags
from nsqtools import to_nsq
from nsqtools.to_nsq import Options

NEEDED = ("--topic=t", "--nsqd-tcp-address=127.0.0.1:4150")


def test_the_group_of_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Producer:
        async def __aenter__(self) -> Producer:
            return self

        async def __aexit__(self, *error: object) -> None: ...

        async def publish(self, topic: str, record: bytes, *, group: bytes | None) -> None:
            await trio.lowlevel.checkpoint()
            opened.append((topic, record, group))

    def open_producer(nsqds: Any, *, strategy: str, **more: Any) -> Producer:
        opened.append(strategy)
        return Producer()

    monkeypatch.setattr(to_nsq, "open_producer", open_producer)

    def publish(*flags: str) -> list[Any]:
        opened.clear()
        reading, writing = os.pipe()
        os.write(writing, b"one\ntwo\n")
        os.close(writing)
        options = read_flags(Options, ("--topic=t", *flags), "to_nsq").options
        trio.run(to_nsq.publish_all, options, reading, trio.Event())
        os.close(reading)
        return opened

    found = publish("--lookupd-http-address=127.0.0.1:4161", "--group=Zürich")
    assert found == ["by_group", ("t", b"one", "Zürich".encode()), ("t", b"two", "Zürich".encode())]
    assert publish("--nsqd-tcp-address=127.0.0.1:4150") == ["hostpool", ("t", b"one", None), ("t", b"two", None)]
    several = ("--nsqd-tcp-address=127.0.0.1:4150", "--nsqd-tcp-address=127.0.0.1:4152")
    assert publish(*several, "--group=a")[0] == "all"


@pytest.mark.parametrize(("group", "reason"), [("", "0 bytes"), ("x" * 129, "129 bytes"), ("\udcff", "not UTF-8")])
def test_a_bad_group_is_a_bad_flag(group: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"for flag -group: invalid group .*{reason}"):
        read_flags(Options, (*NEEDED, f"--group={group}"), "to_nsq")
