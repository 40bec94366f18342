"""The lookup protocol as nsqd uses it: every answer, every error, and what ends the connection."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.lookup import (
    PeerAddress,
    ReplyReader,
    encode_command,
    identify_body,
    reason_in,
    unreachable_reply,
)
from nsqlookupd.protocol import LookupProtocol, ProtocolState
from nsqlookupd.registry import Registry

ADDRESS = PeerAddress("127.0.0.1", "vm", 4161, 4160, "1.3.0")
BODY = identify_body(
    broadcast_address="host1",
    hostname="host1",
    http_port=4151,
    tcp_port=4150,
    topology_region="r",
    topology_zone="z",
    version="1.3.0",
)
IDENTIFY = b"  V1" + encode_command("IDENTIFY", body=BODY)
IDENTIFIED = b'{"broadcast_address":"127.0.0.1","hostname":"vm","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'


class Nsqd:
    """A connection to a registry, with all its replies."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or Registry(inactive_timeout=300, tombstone_lifetime=45)
        self.notes: list[str] = []
        self.protocol = LookupProtocol(self.registry, id="10.0.0.5:51234", address=ADDRESS, note=self._note)

    def _note(self, level: str, text: str, *arguments: object) -> None:
        self.notes.append(f"{level}: {text % arguments}")

    def say(self, data: bytes) -> list[bytes]:
        """Send this, and return the replies."""
        self.protocol.receive(data)
        while self.protocol.step():
            pass
        return self.replies()

    def end(self) -> list[bytes]:
        self.protocol.end()
        return self.replies()

    def replies(self) -> list[bytes]:
        reader = ReplyReader(1 << 20)
        reader.receive(b"".join(self.protocol.bytes_to_send()))
        return list(iter(reader.next_reply, None))

    @property
    def is_open(self) -> bool:
        return self.protocol.state is not ProtocolState.CLOSED

    @property
    def producers(self) -> list[str]:
        answer = self.registry.lookup("t")
        return [peer.identity.broadcast_address for peer in answer.producers] if answer else []


@pytest.fixture
def nsqd() -> Nsqd:
    return Nsqd()


def test_ping_is_ok_before_identify_and_after(nsqd: Nsqd) -> None:
    assert nsqd.say(b"  V1PING\nPING and more\r\n") == [b"OK", b"OK"]
    assert nsqd.say(IDENTIFY[4:] + b"PING\n") == [IDENTIFIED, b"OK"]
    assert nsqd.is_open


def test_ok_is_its_size_and_two_letters(nsqd: Nsqd) -> None:
    nsqd.protocol.receive(b"  V1PING\n")
    while nsqd.protocol.step():
        pass
    assert nsqd.protocol.bytes_to_send() == [b"\x00\x00\x00\x02OK"]


def test_registrations_of_the_specification(nsqd: Nsqd) -> None:
    commands = b"REGISTER t\nREGISTER t c x y\nREGISTER t \nREGISTER u  x\nUNREGISTER t c\nUNREGISTER nosuch\n"
    assert nsqd.say(IDENTIFY + commands) == [IDENTIFIED, *[b"OK"] * 6]
    assert (nsqd.registry.topics(), nsqd.registry.channels("t"), nsqd.registry.channels("u")) == (("t", "u"), ["c"], [])
    assert nsqd.producers == ["host1"]


@pytest.mark.parametrize(
    ("sent", "note"), [(b"GET / HTTP/1.1\r\n", "'GET ' (an HTTP request: HTTP has another port)"), (b"  V2", "'  V2'")]
)
def test_an_http_request_at_the_tcp_port_is_named_in_the_log(nsqd: Nsqd, sent: bytes, note: str) -> None:
    nsqd.say(sent)
    assert f"error: client(10.0.0.5:51234) bad protocol magic {note}" in nsqd.notes


@pytest.mark.parametrize(("sent", "error"), [
    (b"  V2", b"E_BAD_PROTOCOL"),
    (b"GET / HTTP/1.1\r\n", b"E_BAD_PROTOCOL"),
    (b"  V1NOP\n", b"E_INVALID invalid command NOP"),
    (b"  V1\n", b"E_INVALID invalid command "),
    (b"  V1ping\n", b"E_INVALID invalid command ping"),
    (b"  V1REGISTER\tt\n", b"E_INVALID invalid command REGISTER\tt"),
    (b"  V1\xff\xfe x\n", b"E_INVALID invalid command \xff\xfe"),
    (b"  V1REGISTER t c\n", b"E_INVALID client must IDENTIFY"),
    (b"  V1UNREGISTER\n", b"E_INVALID client must IDENTIFY"),
    (IDENTIFY + b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
    (IDENTIFY + b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
    (IDENTIFY + b"REGISTER \n", b"E_INVALID REGISTER insufficient number of params"),
    (IDENTIFY + b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
    (IDENTIFY + b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
    (IDENTIFY + b"REGISTER a$b\n", b"E_BAD_TOPIC REGISTER topic name 'a$b' is not valid"),
    (IDENTIFY + b"REGISTER %b\n" % (b"a" * 65), b"E_BAD_TOPIC REGISTER topic name '%b' is not valid" % (b"a" * 65)),
    (IDENTIFY + b"REGISTER #ephemeral\n", b"E_BAD_TOPIC REGISTER topic name '#ephemeral' is not valid"),
    (IDENTIFY + b"UNREGISTER \xc3\xa9\n", b"E_BAD_TOPIC UNREGISTER topic name '' is not valid".replace(b"''", b"'\xc3\xa9'")),
    (IDENTIFY + b"REGISTER t a$b\n", b"E_BAD_CHANNEL REGISTER channel name 'a$b' is not valid"),
    (IDENTIFY + b"UNREGISTER t a$b\n", b"E_BAD_CHANNEL UNREGISTER channel name 'a$b' is not valid"),
    (b"  V1IDENTIFY\n\x00\x00\x00\x00", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (b"  V1IDENTIFY\n\x00\x00\x00\x04null", b"E_BAD_BODY IDENTIFY missing fields"),
    (b"  V1IDENTIFY\n\x80\x00\x00\x00", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"  V1IDENTIFY\n\x7f\x00\x00\x00", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"  V1" + b"x" * 70_000, b"E_INVALID invalid command " + b"x" * 64),
])  # fmt: skip
def test_error_is_answered_and_ends_the_connection(nsqd: Nsqd, sent: bytes, error: bytes) -> None:
    assert nsqd.say(sent)[-1] == error
    assert not nsqd.is_open
    assert nsqd.say(b"PING\n") == []
    assert nsqd.registry.active_peers() == []


@pytest.mark.parametrize(("sent", "error"), [
    (b"  V1IDENTIFY\n\x00\x00", [b"E_BAD_BODY IDENTIFY failed to read body size"]),
    (b"  V1IDENTIFY\n\x00\x00\x00\x09{", [b"E_BAD_BODY IDENTIFY failed to read body"]),
    (b"  V", []),
    (b"", []),
    (b"  V1PING", []),
])  # fmt: skip
def test_stream_that_ends_too_early(nsqd: Nsqd, sent: bytes, error: list[bytes]) -> None:
    assert nsqd.say(sent) == []
    assert nsqd.end() == error
    assert not nsqd.is_open


@pytest.mark.parametrize(
    "ending", [Nsqd.end, lambda nsqd: nsqd.protocol.close("lost"), lambda nsqd: nsqd.say(b"NOP\n")]
)
def test_what_a_peer_had_goes_with_its_connection(nsqd: Nsqd, ending: object) -> None:
    nsqd.say(IDENTIFY + b"REGISTER t c\n")
    assert callable(ending)
    ending(nsqd)
    assert (nsqd.producers, nsqd.registry.topics(), nsqd.registry.active_peers()) == ([], ("t",), [])


def test_words_after_identify_are_ignored(nsqd: Nsqd) -> None:
    assert nsqd.say(b"  V1IDENTIFY a b\n" + pack(">i", len(BODY)) + BODY) == [IDENTIFIED]


def test_log_lines_are_those_of_nsq(nsqd: Nsqd) -> None:
    nsqd.say(IDENTIFY + b"PING\nREGISTER t c\nREGISTER t c\nUNREGISTER t c\nREGISTER t d\nUNREGISTER t\nNOP\n")
    peer = "10.0.0.5:51234"
    assert nsqd.notes == [
        f"info: CLIENT({peer}): desired protocol magic '  V1'",
        f"info: CLIENT({peer}): IDENTIFY Address:host1 TCP:4150 HTTP:4151 Version:1.3.0",
        f"info: DB: client({peer}) REGISTER category:client key: subkey:",
        f"info: CLIENT({peer}): pinged (last ping 0s)",
        f"info: DB: client({peer}) REGISTER category:channel key:t subkey:c",
        f"info: DB: client({peer}) REGISTER category:topic key:t subkey:",
        f"info: DB: client({peer}) UNREGISTER category:channel key:t subkey:c",
        f"info: DB: client({peer}) REGISTER category:channel key:t subkey:d",
        f"warning: client({peer}) unexpected UNREGISTER category:channel key:t subkey:d",
        f"info: DB: client({peer}) UNREGISTER category:topic key:t subkey:",
        f"error: [{peer}] - E_INVALID invalid command NOP",
        f"info: PROTOCOL(V1): [{peer}] exiting ioloop",
        f"info: client({peer}) - protocol error",
        f"info: DB: client({peer}) UNREGISTER all its registrations: 1",
    ]


words = st.sampled_from(
    [b"REGISTER t c\n", b"REGISTER t\n", b"UNREGISTER t c\n", b"UNREGISTER t\n", b"PING\n", b"NOP\n", b"\n"]
)


@given(st.lists(words, max_size=12), st.integers(1, 30))
def test_packet_borders_do_not_matter(commands: list[bytes], step: int) -> None:
    stream = IDENTIFY + b"".join(commands)
    whole, pieces = Nsqd(), Nsqd()
    at_once = whole.say(stream)
    one_by_one = [reply for at in range(0, len(stream), step) for reply in pieces.say(stream[at : at + step])]
    assert one_by_one == at_once
    assert (pieces.is_open, pieces.producers) == (whole.is_open, whole.producers)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_answered_and_leave_nothing_behind(noise: bytes, is_known: bool) -> None:
    nsqd = Nsqd()
    nsqd.say(IDENTIFY if is_known else b"  V1")
    nsqd.say(noise)
    nsqd.end()
    assert not nsqd.is_open
    assert nsqd.registry.snapshot().peers == 0


def test_an_unregister_of_a_topic_takes_a_step_for_each_channel_and_is_answered_at_the_end(nsqd: Nsqd) -> None:
    nsqd.say(IDENTIFY)
    for number in range(100):
        nsqd.say(encode_command("REGISTER", "t", f"c{number}"))
    nsqd.protocol.receive(encode_command("UNREGISTER", "t") + encode_command("PING"))
    for _ in range(100):
        assert nsqd.protocol.step()
        assert nsqd.replies() == []
    while nsqd.protocol.step():
        pass
    assert nsqd.replies() == [b"OK", b"OK"]
    assert nsqd.producers == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (b"", (False, False)),
        (b" full", (False, False)),
        (b" leaving", (True, False)),
        (b" retired", (True, True)),
        (b" draining", (True, False)),
        (b" draining retired", (True, True)),
    ],
)
def test_a_ping_may_say_that_the_node_leaves(word: bytes, said: tuple[bool, bool]) -> None:
    nsqd = Nsqd(Registry(inactive_timeout=300, tombstone_lifetime=45, missing_lifetime=60))
    assert nsqd.say(IDENTIFY + b"PING%b\n" % word) == [IDENTIFIED, b"OK"]
    nsqd.end()
    assert [(it.has_drained, it.is_retired) for it in nsqd.registry.missing()] == [said]


@pytest.mark.parametrize(("word", "state"), [
    (b"full", "full"), (b"unhealthy", "unhealthy"), (b"draining", "draining"), (b"draining retired", "draining"),
    (b"leaving", "draining"), (b"retired", "draining"), (b"well and happy", ""), (b"\xff", ""), (b"FULL", ""),
])  # fmt: skip
def test_a_ping_tells_the_state_of_the_node(nsqd: Nsqd, word: bytes, state: str) -> None:
    nsqd.say(IDENTIFY + b"REGISTER t\n")
    assert nsqd.say(b"PING %b\n" % word) == [b"OK"]
    (peer,) = nsqd.registry.active_peers()
    assert peer.state == state
    assert nsqd.producers == ["host1"]
    nsqd.say(b"PING\n")
    assert (peer.state, peer.is_leaving) == ("", False)


def test_a_new_state_is_noted_once(nsqd: Nsqd) -> None:
    nsqd.say(IDENTIFY + b"PING full\nPING full\nPING\nPING\n")
    assert [note for note in nsqd.notes if " is " in note] == [
        "info: client(10.0.0.5:51234) is full",
        "info: client(10.0.0.5:51234) is accepting messages again",
    ]


@pytest.mark.parametrize(("node", "answer"), [("n1", b"OK unreachable dial a:1: connection refused"), ("", b"OK")])
def test_only_who_tells_its_node_hears_that_it_cannot_be_reached(node: str, answer: bytes) -> None:
    nsqd = Nsqd()
    body = identify_body(
        broadcast_address="a",
        hostname="a",
        http_port=2,
        tcp_port=1,
        topology_region="",
        topology_zone="",
        version="1.3.0",
        node=node,
    )
    nsqd.say(b"  V1" + encode_command("IDENTIFY", body=body))
    (peer,) = nsqd.registry.active_peers()
    assert nsqd.say(b"PING\n") == [b"OK"]
    nsqd.registry.set_reachable(peer, "dial a:1: connection refused")
    assert nsqd.say(b"PING full\n") == [answer]
    nsqd.registry.set_reachable(peer, "")
    assert nsqd.say(b"PING\n") == [b"OK"]


def test_a_reason_of_any_length_and_any_letters_is_a_short_answer() -> None:
    reason = reason_in(unreachable_reply("é" * 1000)[4:])
    assert reason.startswith("\\xe9\\xe9")
    assert len(reason) == 300
