"""The lookup protocol's bytes, both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.lookup import (
    BadReply,
    LookupCommandReader,
    PeerAddress,
    ReplyReader,
    decode_identify,
    decode_identify_reply,
    encode_command,
    encode_reply,
    identify_body,
    identify_reply,
)

BODY = identify_body(
    broadcast_address="127.0.0.1",
    hostname="vm",
    http_port=4151,
    tcp_port=4150,
    topology_region="",
    topology_zone="",
    version="1.3.0",
)
ADDRESS = PeerAddress("127.0.0.1", "vm", 4161, 4160, "1.3.0")


def test_commands_read_as_nsqd_sends_them() -> None:
    assert encode_command("PING") == b"PING\n"
    assert encode_command("REGISTER", "t", "c") == b"REGISTER t c\n"
    assert encode_command("IDENTIFY", body=b"{}") == b"IDENTIFY\n\0\0\0\2{}"


def test_identify_body_has_its_keys_sorted() -> None:
    assert BODY == (
        b'{"broadcast_address":"127.0.0.1","hostname":"vm","http_port":4151,"tcp_port":4150,'
        b'"topology_region":"","topology_zone":"","version":"1.3.0"}'
    )


def test_who_grants_extensions_says_so_and_the_others_say_nothing() -> None:
    body = identify_body(
        broadcast_address="a",
        hostname="h",
        http_port=1,
        tcp_port=2,
        topology_region="",
        topology_zone="",
        version="1",
        node="n",
        extensions=("bury", "keys"),
    )
    assert body.endswith(b'"version":"1","node":"n","extensions":["bury","keys"]}')
    assert decode_identify(body).extensions == ("bury", "keys")
    assert decode_identify(BODY).extensions == ()


def test_identify_reply_goes_there_and_back() -> None:
    reply = identify_reply(ADDRESS)
    assert reply == (
        b'{"broadcast_address":"127.0.0.1","hostname":"vm","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    )
    assert decode_identify_reply(reply) == ADDRESS


@pytest.mark.parametrize("reply", [b"E_INVALID", b"", b"[]", b'{"tcp_port":"4160"}', b"\xff"])
def test_no_reply_to_identify(reply: bytes) -> None:
    assert decode_identify_reply(reply) is None


def test_reply_that_says_little_leaves_the_rest_empty() -> None:
    assert decode_identify_reply(b'{"version":"1.0"}') == PeerAddress("", "", 0, 0, "1.0")


@given(st.lists(st.binary(max_size=20)), st.integers(1, 9))
def test_packet_borders_do_not_matter_to_replies(replies: list[bytes], step: int) -> None:
    stream = b"".join(map(encode_reply, replies))
    reader, got = ReplyReader(20), list[bytes]()
    for at in range(0, len(stream), step):
        reader.receive(stream[at : at + step])
        while (reply := reader.next_reply()) is not None:
            got.append(reply)
    assert got == replies


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\0\0\x15", b"HTTP"])
def test_impossible_size_of_a_reply(size: bytes) -> None:
    reader = ReplyReader(20)
    reader.receive(size)
    with pytest.raises(BadReply):
        reader.next_reply()


@given(
    st.lists(st.tuples(st.sampled_from([b"PING", b"REGISTER", b"x"]), st.none() | st.binary(max_size=9))),
    st.integers(1, 9),
)
def test_packet_borders_do_not_matter_to_commands(sent: list[tuple[bytes, bytes | None]], step: int) -> None:
    stream = b"".join(word + b" y\n" + (b"" if body is None else encode_reply(body)) for word, body in sent)
    reader = LookupCommandReader()
    got: list[tuple[bytes, bytes | None]] = []
    word: bytes | None = None
    for at in range(0, len(stream), step):
        reader.receive(stream[at : at + step])
        while True:
            if word is None:
                words = reader.next_words()
                if words is None:
                    break
                word = words[0]
            body = None
            if sent[len(got)][1] is not None and (body := reader.next_body()) is None:
                break
            got.append((word, body))
            word = None
    assert got == sent


@pytest.mark.parametrize(("line", "words"), [
    (b"\n", [b""]),
    (b"PING\r\n", [b"PING"]),
    (b" \tPING  \r\r\n", [b"PING"]),
    (b"REGISTER  t\n", [b"REGISTER", b"", b"t"]),
    (b"REGISTER \n", [b"REGISTER"]),
    (b"REGISTER\tt\n", [b"REGISTER\tt"]),
])  # fmt: skip
def test_line_is_trimmed_and_cut_at_single_spaces(line: bytes, words: list[bytes]) -> None:
    reader = LookupCommandReader()
    reader.receive(line)
    assert reader.next_words() == words


def test_line_is_bounded() -> None:
    reader = LookupCommandReader(max_line=10)
    reader.receive(b"PING 67890\nPING 6789012345")
    assert reader.next_words() == [b"PING", b"67890"]
    with pytest.raises(ProtocolError, match=r"^E_INVALID invalid command PING$"):
        reader.next_words()


@pytest.mark.parametrize(("size", "error"), [
    (b"\x80\0\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"\0\0\0\x0b", "E_BAD_BODY IDENTIFY failed to read body"),
])  # fmt: skip
def test_impossible_size_of_a_body(size: bytes, error: str) -> None:
    reader = LookupCommandReader(max_body=10)
    reader.receive(size)
    with pytest.raises(ProtocolError, match=f"^{error}$"):
        reader.next_body()


@pytest.mark.parametrize(("rest", "error"), [
    (b"", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"\0\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"\0\0\0\x02", "E_BAD_BODY IDENTIFY failed to read body"),
    (b"\0\0\0\x02{", "E_BAD_BODY IDENTIFY failed to read body"),
])  # fmt: skip
def test_stream_that_ends_where_a_body_is_due(rest: bytes, error: str) -> None:
    reader = LookupCommandReader()
    reader.receive(rest)
    assert reader.next_body() is None
    assert str(reader.missing_body()) == error


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b'"a"', BODY + b"x", BODY.replace(b"4150", b'"4150"'), BODY.replace(b"4150", b"4150.0")]
)
def test_body_that_is_no_such_document(body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^E_BAD_BODY IDENTIFY failed to decode JSON body$"):
        decode_identify(body)


@pytest.mark.parametrize("body", [
    b"null",
    b"{}",
    BODY.replace(b"127.0.0.1", b""),
    BODY.replace(b"4150", b"0"),
    BODY.replace(b"4151", b"null"),
    BODY.replace(b"1.3.0", b""),
])  # fmt: skip
def test_body_that_lacks_something(body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^E_BAD_BODY IDENTIFY missing fields$"):
        decode_identify(body)


@pytest.mark.parametrize("body", [
    BODY + b" \n",
    BODY.replace(b"tcp_port", b"TCP_Port"),
    BODY.replace(b"4151", b"-4151"),
    BODY.replace(b"4150", b"99999999"),
    BODY.replace(b'"vm"', b'""'),
    BODY.replace(b"{", b'{"extra":[1],', 1),
])  # fmt: skip
def test_body_that_is_good_enough(body: bytes) -> None:
    assert decode_identify(body).broadcast_address == "127.0.0.1"


def test_the_http_port_of_nsqlookupd_by_mistake() -> None:
    reader = ReplyReader(64 * 1024)
    reader.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(BadReply, match="unexpected HTTP response, a nsqlookupd TCP endpoint is required"):
        reader.next_reply()
