"""PUB, DPUB and MPUB with a key, on connections that were granted keys; on all others the word is ignored, as in NSQ."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.commands import identify, mpub, pub
from tests.support.node import Client, Node

KEYED = b"  V2" + identify(json.dumps({"feature_negotiation": True, "extensions": ["keys"]}).encode())


def publisher(node: Node, said: bytes = KEYED) -> Client:
    return node.client(said)


def keyed(command: bytes, key: bytes) -> bytes:
    """Add a word to the command's line."""
    line, _, body = command.partition(b"\n")
    return line + b" " + key + b"\n" + body


def dpub(ms: int) -> bytes:
    return b"DPUB t %d\n\0\0\0\1x" % ms


def count(node: Node, topic: str = "t") -> int:
    return node.topic(topic).message_count


@pytest.mark.parametrize("command", [pub("t", b"x"), mpub("t", [b"x", b"y"]), dpub(0), dpub(5000)])
def test_a_second_try_is_answered_and_publishes_nothing(command: bytes) -> None:
    node = Node()
    answers = publisher(node).answers(keyed(command, b"k") * 2 + keyed(command, b"other"))
    again = publisher(node).answers(keyed(command, b"k"))
    assert answers + again == [b"OK"] * 4
    assert count(node) == (4 if command.startswith(b"MPUB") else 2)
    assert node.topic().repeat_count == 2


def test_a_key_stands_for_a_publish_of_any_kind_to_its_topic() -> None:
    node = Node()
    client = publisher(node)
    assert (
        client.answers(keyed(pub("t", b"x"), b"k") + keyed(mpub("t", [b"x"]), b"k") + keyed(dpub(1), b"k"))
        == [b"OK"] * 3
    )
    assert client.answers(keyed(pub("u", b"x"), b"k")) == [b"OK"]
    assert (count(node), count(node, "u")) == (1, 1)


def test_without_the_extension_the_word_is_ignored() -> None:
    node = Node()
    client = publisher(node, b"  V2")
    assert client.answers(keyed(pub("t", b"x"), b"k") * 2 + keyed(pub("t", b"x"), b"\xff" * 99)) == [b"OK"] * 3
    assert client.answers(keyed(mpub("t", [b"x"]), b"k") * 2) == [b"OK"] * 2
    assert client.answers(keyed(dpub(0), b"k") * 2) == [b"OK"] * 2
    assert count(node) == 7


def test_keys_and_none_on_one_connection() -> None:
    node = Node()
    client = publisher(node)
    both = keyed(pub("t", b"x"), b"k") + pub("t", b"x")
    assert client.answers(both * 3) == [b"OK"] * 6
    assert count(node) == 4


@pytest.mark.parametrize("key", [b"", b"\xc3\xa4", b"k" * 65, b"\t"])
@pytest.mark.parametrize("command", [pub("t", b"x"), mpub("t", [b"x"]), dpub(0)])
def test_a_key_that_is_none_is_refused_before_the_body(command: bytes, key: bytes) -> None:
    node = Node()
    client = publisher(node)
    word = command.split(b" ")[0]
    [answer] = client.answers(keyed(command, key).partition(b"\n")[0] + b"\n")
    assert answer.startswith(b"E_INVALID " + word + b" key ")
    assert client.is_closed
    assert count(node) == 0 if node.broker.find("t") else True


@given(st.lists(st.sampled_from([None, b"a", b"b", b"k" * 64, b"%d" % 7]), max_size=30), st.integers(1, 40))
def test_any_mix_in_pieces_of_any_size(keys: list[bytes | None], size: int) -> None:
    node = Node()
    client = publisher(node)
    data = b"".join(pub("t", b"x") if key is None else keyed(pub("t", b"x"), key) for key in keys)
    answers: list[bytes] = []
    for start in range(0, len(data), size):
        answers += client.answers(data[start : start + size])
    assert answers == [b"OK"] * len(keys)
    if keys:
        assert count(node) == keys.count(None) + len({key for key in keys if key is not None})
