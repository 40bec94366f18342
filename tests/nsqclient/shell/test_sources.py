"""Where a consumer finds its nsqds."""

from __future__ import annotations

import pytest
import trio

from nsqclient import ConfigError
from nsqclient.shell.sources import Sources


def sources(*nsqd: str, lookupd: list[str] | None = None) -> Sources[str]:
    return Sources(nsqd, lookupd or [], resolve=None, discovery_filter=None)


def test_an_nsqd_that_is_given_twice_is_one() -> None:
    assert list(sources("b:4150", "a:4150", "b:4150").given) == ["b:4150", "a:4150"]


def test_messages_have_to_come_from_somewhere() -> None:
    with pytest.raises(ConfigError, match="neither nsqd nor nsqlookupd is given"):
        sources().check()
    sources(lookupd=["lookup:4161"]).check()
    sources("nsqd:4150").check()


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="missing port"):
        sources("nsqd").check()


def test_the_filter_chooses_among_the_listed_only() -> None:
    seen: list[list[str]] = []

    def last(listed: object) -> list[str]:
        assert isinstance(listed, list)
        seen.append(listed)
        return listed[-1:]

    chosen = Sources(["given:4150"], [], resolve=None, discovery_filter=last).chosen({"a:4150": 1, "b:4150": 2})
    assert (chosen, seen) == (["b:4150"], [["a:4150", "b:4150"]])
    assert sources().chosen(["a:4150"]) == ["a:4150"]


def test_addresses_are_resolved_whether_given_or_listed() -> None:
    resolving = Sources(["a:4150"], [], resolve=lambda address: f"proxy/{address}", discovery_filter=None)
    assert resolving.target("a:4150") == "proxy/a:4150"
    assert resolving.target("b:4150") == "proxy/b:4150"
    assert sources("a:4150").target("b:4150") == "b:4150"


class Pipe:
    """What the caller dials itself."""

    def __str__(self) -> str:
        return "pipe"

    async def connect(self) -> trio.abc.Stream:
        raise AssertionError("nobody dials here")


def test_what_is_no_address_is_dialled_as_it_was_given() -> None:
    pipe = Pipe()
    resolving = Sources([pipe], [], resolve=lambda address: "elsewhere", discovery_filter=None)
    assert resolving.target("pipe") is pipe
