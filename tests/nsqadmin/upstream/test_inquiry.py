"""The inquiry into who has caused what was seen: when nodes are asked, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import trio

from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster.model import (
    Activity,
    Channel,
    ChannelNode,
    Health,
    Node,
    Paused,
    PausedHow,
    Snapshot,
    Topic,
    TopicNode,
)
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.inquiry import Inquiry

NODE = "n1:4151"


class FakeUpstream:
    """Answers with the changes that a test gives it, or with an error."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: Any = None

    async def get_json(self, address: str, target: str) -> Any:
        self.asked.append((address, target))
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def picture(at: float, *, paused: bool, has_history: bool = True, start_time: float = 1.0) -> Snapshot:
    state = Paused.YES if paused else Paused.NO
    node = Node(
        address=NODE,
        hostname="n1",
        broadcast_address="n1",
        tcp_port=4150,
        http_port=4151,
        health=Health.OK,
        has_history=has_history,
        start_time=start_time,
    )
    topic = Topic(name="t", nodes=(TopicNode(node=NODE),), channels=(Channel(topic="t", name="c", paused=state),))
    return Snapshot(index=1, taken_at=at, interval=5.0, has_lookupds=False, nodes=(node,), topics=(topic,))


def event(what: str, at: float, channel: str = "c") -> Activity:
    return Activity(at=at, what=what, text="", topic="t", channel=channel)


class Watched:
    def __init__(self) -> None:
        self.upstream = FakeUpstream()
        self.activity = ActivityLog()
        self.inquiry = Inquiry(cast("Upstream", self.upstream), self.activity)
        self.before = picture(100.0, paused=False)

    def see(self, now: Snapshot, events: Iterable[Activity]) -> Snapshot:
        """Look into a sweep's events, and wait until everybody has been asked."""
        shown = self.inquiry.look_into(now, events)

        async def ask() -> None:
            async with trio.open_nursery() as nursery:
                self.inquiry.ask(nursery, self.before, shown)

        trio.run(ask)
        self.before = shown
        return shown

    @property
    def log(self) -> list[tuple[str, str, bool]]:
        return [(entry.what, entry.user, entry.is_outside) for entry in reversed(self.activity.newest())]


def change(n: int, what: str, at: float, who: str = "on call") -> dict[str, Any]:
    return {"n": n, "at": int(at * 1e9), "what": what, "topic": "t", "channel": "c", "who": who, "remote": "r"}


def test_nodes_are_asked_only_about_what_somebody_else_did() -> None:
    watched = Watched()
    watched.see(picture(105.0, paused=False), [event("consumers_gone", 105.0), event("topic_appeared", 105.0, "")])
    watched.see(picture(110.0, paused=False), [])
    done = Activity(at=112.0, what="pause_channel", text="", topic="t", channel="c", user="ana", result="ok")
    watched.activity.add_action(done)
    shown = watched.see(picture(115.0, paused=True), [event("paused", 115.0)])
    assert watched.upstream.asked == []
    assert [what for what, *_ in watched.log] == ["consumers_gone", "topic_appeared", "pause_channel"]
    (paused,) = shown.pauses
    assert (paused.how, paused.who, paused.at) == (PausedHow.HERE, "ana", 112.0)


def test_later_questions_are_about_later_changes_and_earlier_answers_count() -> None:
    watched = Watched()
    watched.upstream.answer = {
        "changes": [change(7, "pause_channel", 104.0), change(8, "unpause_channel", 105.5)],
        "next": 8,
    }
    watched.see(picture(105.0, paused=True), [event("paused", 105.0)])
    watched.upstream.answer = {"changes": [], "next": 8}
    watched.see(picture(110.0, paused=False), [event("unpaused", 110.0)])
    watched.see(picture(115.0, paused=True, start_time=2.0), [event("paused", 115.0)])
    assert [target for _, target in watched.upstream.asked] == [
        "/changes?after=0",
        "/changes?after=8",
        "/changes?after=0",  # it was restarted, so its numbers begin again
    ]
    assert watched.log == [("paused", "on call", True), ("unpaused", "on call", True), ("paused", "", True)]


def test_what_the_node_says_is_in_the_next_picture() -> None:
    watched = Watched()
    watched.upstream.answer = {"changes": [change(1, "pause_channel", 104.0)], "next": 1}
    (first,) = watched.see(picture(105.0, paused=True), [event("paused", 105.0)]).pauses
    (then,) = watched.see(picture(110.0, paused=True), []).pauses
    assert (first.how, first.who, first.at) == (PausedHow.OUTSIDE, "", 105.0)
    assert (then.how, then.who, then.at) == (PausedHow.OUTSIDE, "on call", 104.0)
    assert watched.see(picture(115.0, paused=False), [event("unpaused", 115.0)]).pauses == ()


def test_a_node_that_cannot_tell_leaves_the_event_without_a_name() -> None:
    for answer in (UpstreamError("404", status=404), None, {"changes": "x", "next": "y"}, {"next": 10**100}):
        watched = Watched()
        watched.upstream.answer = answer
        watched.see(picture(105.0, paused=True), [event("paused", 105.0)])
        assert watched.log == [("paused", "", True)]


def test_nsqs_own_nsqd_is_not_asked() -> None:
    watched = Watched()
    watched.before = picture(100.0, paused=False, has_history=False)
    watched.see(picture(105.0, paused=True, has_history=False), [event("paused", 105.0)])
    assert (watched.upstream.asked, watched.log) == ([], [("paused", "", True)])


def test_an_event_waits_for_the_action_that_is_under_way() -> None:
    watched = Watched()
    with watched.activity.under_way("t"):
        shown = watched.see(picture(105.0, paused=True), [event("paused", 105.0)])
        assert (shown.pauses, watched.log) == ((), [])
        done = Activity(at=104.0, what="pause_channel", text="", topic="t", channel="c", user="ana", result="partly")
        watched.activity.add_action(done)
    (paused,) = watched.see(picture(110.0, paused=True), []).pauses
    assert (paused.how, paused.who) == (PausedHow.HERE, "ana")
    assert [what for what, *_ in watched.log] == ["pause_channel"]


def test_what_is_paused_at_the_first_look_was_so_before() -> None:
    watched = Watched()
    (paused,) = watched.see(picture(105.0, paused=True), []).pauses
    assert (paused.how, paused.at) == (PausedHow.BEFORE, 105.0)
    (still,) = watched.see(picture(110.0, paused=True), []).pauses
    assert still.at == 105.0


def told_of_emptying(user_agent: str = "curl/8", at: float = 112.0) -> dict[str, Any]:
    return {"changes": [{**change(1, "empty_channel", at), "user_agent": user_agent}], "next": 1}


def test_what_somebody_else_has_emptied_is_an_event() -> None:
    watched = Watched()
    watched.see(picture(100.0, paused=False), [])
    watched.upstream.answer = told_of_emptying()
    watched.see(picture(116.0, paused=False), [])
    watched.upstream.answer = {"changes": [], "next": 1}
    watched.see(picture(121.0, paused=False), [])
    watched.see(picture(141.0, paused=False), [])
    (entry,) = watched.activity.newest()
    assert (entry.what, entry.at, entry.user, entry.is_outside) == ("empty_channel", 112.0, "on call", True)
    assert (entry.text, entry.nodes) == (f"channel t/c was emptied on {NODE}", (NODE,))
    assert [target for _, target in watched.upstream.asked] == ["/changes?after=0", "/changes?after=1"]


def test_what_was_emptied_before_the_first_look_is_no_news() -> None:
    watched = Watched()
    watched.see(picture(100.0, paused=False), [])
    watched.upstream.answer = told_of_emptying(at=99.0)
    watched.see(picture(116.0, paused=False), [])
    watched.see(picture(121.0, paused=False), [])
    assert watched.log == []


def test_what_a_user_has_emptied_here_is_one_entry() -> None:
    watched = Watched()
    watched.see(picture(100.0, paused=False), [])
    watched.upstream.answer = told_of_emptying("nsqadmin")
    with watched.activity.under_way("t"):
        watched.see(picture(116.0, paused=False), [])
        watched.see(picture(121.0, paused=False), [])
    done = Activity(
        at=111.9, what="empty_channel", text="", user="ana", topic="t", channel="c", nodes=(NODE,), result="ok"
    )
    watched.activity.add_action(done)
    watched.see(picture(126.0, paused=False), [])
    assert watched.activity.newest() == (done,)


def test_a_channel_that_stops_itself_needs_no_question_until_a_person_has_paused_it() -> None:
    watched = Watched()
    row = ChannelNode(node=NODE, paused=True, paused_why="more than 3 messages are buried (max_buried)")

    def stopped(at: float, row: ChannelNode) -> Snapshot:
        channel = Channel(topic="t", name="c", paused=Paused.YES, nodes=(row,))
        shown = picture(at, paused=True)
        return replace(shown, topics=(replace(shown.topics[0], channels=(channel,)),), _by_name={}, _by_address={})

    watched.see(picture(105.0, paused=False), [])
    shown = watched.see(stopped(110.0, row), [event("paused_itself", 110.0)])
    assert (shown.pauses[0].how, shown.pauses[0].at) == (PausedHow.ITSELF, 110.0)
    assert watched.upstream.asked == []
    assert watched.log == [("paused_itself", "", False)]
    shown = watched.see(stopped(115.0, replace(row, paused_why="")), [])
    assert shown.pauses[0].how is PausedHow.BEFORE
