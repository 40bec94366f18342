"""What a peer is sent: the difference between what it knows and what exists."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.http_client import https_port_in
from nsqd.lookup.registration import RegistrationRefused, RegistrationState, Words, address_in, channels_in

REPLY = b'{"broadcast_address":"host","hostname":"h","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'


@dataclass(eq=False)
class Topic:
    channels: dict[str, object] = field(default_factory=dict)


def topic(*channels: str) -> Topic:
    return Topic({name: object() for name in channels})


def said(registration: RegistrationState) -> list[str]:
    return [" ".join(words) for words in iter_all(registration)]


def iter_all(registration: RegistrationState, limit: int = 3) -> list[Words]:
    found: list[Words] = []
    while some := registration.next_commands(limit):
        assert len(some) <= limit
        found += some
    return found


def connected(topics: dict[str, Topic]) -> RegistrationState:
    registration = RegistrationState(topics)
    registration.connected()
    iter_all(registration)
    return registration


def test_a_resync_names_a_topic_with_channels_by_its_channels_only() -> None:
    registration = RegistrationState({"a": topic(), "b": topic("x", "y#ephemeral"), "c#ephemeral": topic()})
    assert said(registration) == []
    registration.connected()
    assert said(registration) == ["REGISTER a", "REGISTER b x", "REGISTER b y#ephemeral", "REGISTER c#ephemeral"]
    assert said(registration) == []


def test_a_new_connection_is_told_everything_again() -> None:
    registration = connected({"a": topic("x")})
    registration.disconnected()
    registration.changed("a")
    assert said(registration) == []
    registration.connected()
    assert said(registration) == ["REGISTER a x"]


def test_a_new_topic_is_registered() -> None:
    topics: dict[str, Topic] = {}
    registration = connected(topics)
    topics["t"] = topic()
    registration.changed("t")
    assert said(registration) == ["REGISTER t"]
    topics["t"].channels["c"] = object()
    registration.changed("t")
    assert said(registration) == ["REGISTER t c"]


def test_what_goes_is_unregistered_channels_first() -> None:
    topics = {"t": topic("c", "d")}
    registration = connected(topics)
    del topics["t"].channels["d"]
    registration.changed("t")
    assert said(registration) == ["UNREGISTER t d"]
    del topics["t"]
    registration.changed("t")
    assert said(registration) == ["UNREGISTER t c", "UNREGISTER t"]


def test_the_last_channel_goes_and_the_topic_stays() -> None:
    topics = {"t": topic("c")}
    registration = connected(topics)
    topics["t"].channels.clear()
    registration.changed("t")
    assert said(registration) == ["UNREGISTER t c"]


def test_what_came_and_went_in_between_is_not_mentioned() -> None:
    topics: dict[str, Topic] = {}
    registration = connected(topics)
    topics["t"] = topic("c")
    registration.changed("t")
    del topics["t"]
    registration.changed("t")
    assert said(registration) == []


def test_a_topic_made_again_is_another_one() -> None:
    """The peer may have a tombstone for the old one, or may have been told to forget it."""
    topics = {"t": topic("c")}
    registration = connected(topics)
    topics["t"] = topic("c")
    registration.changed("t")
    assert said(registration) == ["UNREGISTER t c", "UNREGISTER t", "REGISTER t c"]


def test_a_channel_made_again_is_another_one() -> None:
    topics = {"t": topic("c")}
    registration = connected(topics)
    topics["t"].channels["c"] = object()
    registration.changed("t")
    assert said(registration) == ["UNREGISTER t c", "REGISTER t c"]


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.sampled_from(["make", "drop", "tell", "break"]), NAMES, NAMES)))
def test_the_peer_ends_up_knowing_what_there_is(steps: list[tuple[str, str, str]]) -> None:
    topics: dict[str, Topic] = {}
    registration = RegistrationState(topics)
    registration.connected()
    known: set[str] = set()

    def tell(limit: int) -> bool:
        commands = registration.next_commands(limit)
        for word, *names in commands:
            if word == "REGISTER":
                known.update((names[0], " ".join(names)))
            else:
                known.remove(" ".join(names))  # raises for a name that was never registered
        return bool(commands)

    for step, name, channel in steps:
        match step:
            case "make":
                topics.setdefault(name, Topic()).channels[channel] = object()
                registration.changed(name)
            case "drop":
                if (found := topics.get(name)) is not None and found.channels.pop(channel, None) is None:
                    del topics[name]
                registration.changed(name)
            case "tell":
                tell(2)
            case "break":
                registration.disconnected()
                known.clear()
                registration.connected()
    while tell(5):
        pass
    expected = {*topics} | {f"{name} {channel}" for name, it in topics.items() for channel in it.channels}
    assert known == expected


def test_an_answer_to_identify() -> None:
    address = address_in(REPLY)
    assert (address.broadcast_address, address.http_port) == ("host", 4161)


@pytest.mark.parametrize("reply", [b"E_INVALID", b"OK", b"", b"[]", b'{"http_port":"4161"}'])
def test_what_is_no_answer_to_identify(reply: bytes) -> None:
    with pytest.raises(RegistrationRefused, match="answered IDENTIFY with"):
        address_in(reply)


def test_channels_that_a_new_topic_does_not_get() -> None:
    answer = b'{"channels":["b","a","tail#ephemeral","not a name","a",7,null]}'
    assert channels_in(answer) == {"a", "b"}


@pytest.mark.parametrize("answer", [b"{}", b'{"channels":null}', b'{"channels":[]}'])
def test_no_channels(answer: bytes) -> None:
    assert channels_in(answer) == set()


@pytest.mark.parametrize("answer", [b"", b"OK", b"[]", b'{"channels":"a"}', b'{"channels":{}}', b"\xff"])
def test_answers_without_channels_are_refused(answer: bytes) -> None:
    with pytest.raises(RegistrationRefused, match="answered with"):
        channels_in(answer)


@pytest.mark.parametrize(
    ("answer", "port"),
    [
        (b'{"message":"TLS_REQUIRED","https_port":4163}', 4163),
        (b"{}", None),
        (b"no", None),
        (b'{"https_port":"1"}', None),
    ],
)
def test_the_port_of_an_nsqlookupd_that_wants_tls(answer: bytes, port: int | None) -> None:
    assert https_port_in(answer) == port
