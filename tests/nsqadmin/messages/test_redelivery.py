"""Selections as texts, and delivering selected messages once more: which requests, and what nodes refuse."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qs

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.messages.model import Redelivered
from nsqadmin.messages.publishing import Publisher
from nsqadmin.messages.redelivery import Redeliverer
from nsqadmin.messages.selection import BadSelection, Source, parse_selection, selected
from nsqadmin.upstream.client import Upstream, UpstreamError
from tests.nsqadmin.histories import Histories, History

SOURCES = st.builds(Source, st.sampled_from(["n1:4151", "[::1]:4151"]), st.sampled_from(["", "1f0c2d", "l-2"]))
MESSAGES = st.sets(st.tuples(SOURCES, st.integers(0, 500)), min_size=1)


@given(MESSAGES)
def test_a_selection_is_read_as_it_was_written(messages: set[tuple[Source, int]]) -> None:
    selection = selected(messages)
    assert parse_selection(str(selection)) == selection
    assert selection.count == len(messages)


def test_neighbours_and_doubles_are_joined() -> None:
    assert str(parse_selection("3@n 1@n 2@n 2-5@n 9@n")) == "1-5@n 9@n"


@pytest.mark.parametrize(
    "text", ["", "x", "1@", "@n", "5-3@n", "0-10000@n", "-1@n", "1@n 2", "1@n@", "1@n@a b", "1@n@a@b"]
)
def test_a_text_that_is_no_selection_is_refused(text: str) -> None:
    with pytest.raises(BadSelection):
        parse_selection(text)


class Nodes(Histories):
    """Nodes that answer to redelivery, each with what it is told to."""

    def __init__(self, answers: dict[str, bytes | UpstreamError], **histories: History) -> None:
        super().__init__(**histories)
        self._answers = answers

    async def post(self, address: str, target: str, body: bytes = b"") -> bytes:
        await super().post(address, target, body)
        answer = self._answers[address]
        if isinstance(answer, UpstreamError):
            raise answer
        return answer

    def redeliver(self, messages: str) -> tuple[Redelivered, ...]:
        redeliverer = self._redeliverer()
        return trio.run(redeliverer.redeliver, "t", "c", parse_selection(messages))

    def publish_again(self, messages: str) -> tuple[Redelivered, ...]:
        return trio.run(self._redeliverer().publish_again, "t", parse_selection(messages))

    def _redeliverer(self) -> Redeliverer:
        upstream = cast(Upstream, self)
        return Redeliverer(upstream, self.reader(), Publisher(upstream, self.reader()))

    @property
    def arguments(self) -> list[dict[str, list[str]]]:
        return [parse_qs(target.partition("?")[2]) for _, target in self.posted]


DONE = b'{"redelivered":2,"waiting":1,"gone":0}'


def refusal(message: str, status: int = 404) -> UpstreamError:
    return UpstreamError("refused", status=status, body=b'{"message":"%s"}' % message.encode())


def both(answer: bytes | UpstreamError) -> Nodes:
    return Nodes({"n1:4151": answer}, n1=History([b"x"] * 50))


def test_each_node_is_asked_for_its_own_messages() -> None:
    nodes = Nodes({"n1:4151": DONE, "n2:4151": DONE}, n1=History([]), n2=History([]))
    rows = nodes.redeliver("1@n1:4151 7@n1:4151 0-99@n2:4151")
    asked = dict(zip((address for address, _ in nodes.posted), nodes.arguments, strict=True))
    assert asked["n1:4151"] == {"topic": ["t"], "channel": ["c"], "sequence": ["1", "7"]}
    assert asked["n2:4151"] == {"topic": ["t"], "channel": ["c"], "from": ["0"], "to": ["100"]}
    assert [(row.node, row.asked, row.redelivered, row.waiting) for row in rows] == [
        ("n1:4151", 2, 2, 1),
        ("n2:4151", 100, 2, 1),
    ]


def test_many_single_messages_are_asked_for_in_several_requests() -> None:
    nodes = both(DONE)
    nodes.redeliver(" ".join(f"{2 * at}@n1:4151" for at in range(1000)))
    asked = [int(text) for arguments in nodes.arguments for text in arguments["sequence"]]
    assert asked == [2 * at for at in range(1000)]
    assert max(len(target) for _, target in nodes.posted) < 8000


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (refusal("NOT_FOUND"), "it cannot deliver to one channel: it is a Go nsqd or an older version"),
        (refusal("CHANNEL_NOT_FOUND"), "it does not have the channel"),
        (refusal("ANOTHER_LOG", 409), "the topic has been deleted and created again there"),
        (refusal("BEYOND_END", 400), "the channel has not received some of these messages yet"),
        (UpstreamError("it could not be reached"), "it could not be reached"),
        (b"[]", "cannot be read"),
        (b'{"redelivered":1}', "cannot be read"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_node_that_does_not_do_it_is_told_in_words(answer: Any, text: str) -> None:
    (row,) = both(answer).redeliver("1@n1:4151")
    assert text in row.error
    assert row.redelivered == 0


def test_publishing_again_reads_the_messages_where_they_are() -> None:
    nodes = both(b"OK")
    (row,) = nodes.publish_again("1@n1:4151 10-19@n1:4151 48-60@n1:4151")
    assert (row.asked, row.redelivered, row.gone, row.error) == (24, 13, 11, "")
    assert all(target.startswith("/mpub?topic=t") for _, target in nodes.posted)


def test_messages_of_a_log_are_asked_for_in_that_log_alone() -> None:
    nodes = both(DONE)
    nodes.redeliver("1@n1:4151@l1 7@n1:4151@l2")
    assert sorted((it["log"], it["sequence"]) for it in nodes.arguments) == [(["l1"], ["1"]), (["l2"], ["7"])]


def test_messages_of_another_log_are_not_published_again() -> None:
    nodes = both(b"OK")
    gone, there = nodes.publish_again("1@n1:4151@l0 2@n1:4151@l1")
    assert (gone.redelivered, "deleted and created again" in gone.error) == (0, True)
    assert (there.redelivered, there.error) == (1, "")
    assert len(nodes.posted) == 1
