"""What nsqadmin does about a node that does not tell its state before an action that can be undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from nsqadmin.access import Identity
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.actions.execution import Executor
from nsqadmin.actions.notify import Notifier
from nsqadmin.actions.plan import Action, Kind, Receipt
from nsqadmin.cluster.model import Snapshot
from nsqadmin.http.responses import Caller
from nsqadmin.options import Options
from nsqadmin.upstream.client import UpstreamError
from nsqadmin.upstream.discovery import Announced
from nsqadmin.upstream.queries import Found, Queries
from tests.support import picture

EMPTY = Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c")
GOOD = b'{"count":5,"retention":{"kept":true,"time":60,"bytes":0}}'
NODE = "n1:4151"


class OneNode(Queries):
    """A cluster of one node that tells its state as a test says, and does what it is asked."""

    def __init__(self, tell: Callable[[], bytes], answer: UpstreamError | None = None) -> None:
        self._tell = tell
        self._answer = answer  # to the action
        self.posted: list[str] = []

    @property
    def lookupds(self) -> tuple[str, ...]:
        return ()

    async def topic_producers(self, topic: str) -> Found[list[Announced]]:
        return Found([])

    async def channel_state(self, address: str, topic: str, channel: str) -> bytes:
        return self._tell()

    async def post(self, address: str, target: str, *, is_lookupd: bool) -> UpstreamError | None:
        self.posted.append(target)
        return self._answer


def carried_out(
    queries: OneNode, action: Action = EMPTY, *, before: Snapshot | None, nodes: tuple[str, ...] = (NODE,)
) -> Receipt:
    executor = Executor(queries, ActivityLog(), Notifier(Options()), lost_by=lambda _: 5)
    caller = Caller(identity=Identity(), remote="127.0.0.1:5000")

    async def perform() -> Receipt:
        return await executor.perform(action, caller, nodes, before=before)

    return trio.run(perform)


def refused(status: int, body: bytes = b"") -> Callable[[], bytes]:
    def tell() -> bytes:
        raise UpstreamError("no", status=status, body=body)

    return tell


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (
            refused(404, b'{"message":"NOT_FOUND"}'),
            "it keeps no history: it is a Go nsqd or an older version",
        ),
        (refused(413, b'{"message":"TOO_MANY"}'), "its channel has more than 10,000 gaps"),
        (refused(500, b"[" * 10_000), "it did not report the channel's state (HTTP 500)"),
        (lambda: b"odd", "its description of the channel cannot be read"),
    ],
)
def test_a_node_that_does_not_tell_carries_out_the_action_and_the_receipt_names_it(
    tell: Callable[[], bytes], reason: str
) -> None:
    queries = OneNode(tell)
    receipt = carried_out(queries, before=picture.snapshot())
    assert (receipt.result, receipt.undo) == ("ok", "")
    assert queries.posted == ["/channel/empty?topic=t&channel=c"]
    (text,) = receipt.no_undo
    assert text.startswith(f"Cannot be undone on {NODE}: {reason}")


def test_a_silent_node_is_not_sent_the_action() -> None:
    queries = OneNode(refused(0))
    receipt = carried_out(queries, before=picture.snapshot())
    assert (receipt.result, receipt.undo, receipt.no_undo, queries.posted) == ("failed", "", (), [])


@pytest.mark.parametrize(
    ("action", "before"),
    [
        (EMPTY, None),  # as NSQ's own API asks
        (Action(kind=Kind.EMPTY_CHANNEL, topic="t", channel="c#ephemeral"), picture.snapshot()),
        (Action(kind=Kind.DELETE_TOPIC, topic="t"), picture.snapshot()),
    ],
)
def test_what_is_never_undone_asks_for_no_state(action: Action, before: Snapshot | None) -> None:
    queries = OneNode(refused(0))
    receipt = carried_out(queries, action, before=before)
    assert (receipt.result, receipt.undo, receipt.no_undo) == ("ok", "", ())
    assert len(queries.posted) == 1


def test_what_a_node_has_told_is_kept_under_the_id_of_the_receipt() -> None:
    receipt = carried_out(OneNode(lambda: GOOD), before=picture.snapshot())
    assert receipt.undo
    assert receipt.no_undo == ()


@pytest.mark.parametrize(
    "answer",
    [
        UpstreamError("net/http: timeout awaiting response headers", timed_out=True),  # stopped after it was asked
        UpstreamError("read tcp: EOF"),
        UpstreamError("got response 500", status=500),  # nsqd's change is in effect, and not yet on disk
    ],
)
def test_what_a_node_may_still_do_can_be_undone(answer: UpstreamError) -> None:
    receipt = carried_out(OneNode(lambda: GOOD, answer), before=picture.snapshot())
    assert receipt.result == "failed"
    assert receipt.undo


@pytest.mark.parametrize(
    "answer",
    [UpstreamError("dial tcp 1.2.3.4:4151: connect: connection refused"), UpstreamError("no", status=403)],
)
def test_what_a_node_will_not_do_needs_no_undo(answer: UpstreamError) -> None:
    receipt = carried_out(OneNode(lambda: GOOD, answer), before=picture.snapshot())
    assert (receipt.result, receipt.undo) == ("failed", "")


def test_a_node_that_was_asked_and_is_silent_may_still_do_it() -> None:
    silent = UpstreamError("net/http: timeout awaiting response headers", timed_out=True)
    pause = Action(kind=Kind.PAUSE_CHANNEL, topic="t", channel="c")
    (asked,) = carried_out(OneNode(refused(0), silent), pause, before=picture.snapshot()).steps
    assert (asked.is_done, asked.may_follow) == (False, True)
    assert asked.why == "No answer in time: it hangs or is overloaded, and may still do this later."
    (spared,) = carried_out(OneNode(refused(0)), before=picture.snapshot()).steps
    assert (spared.is_done, spared.may_follow) == (False, False)


class SlowFirst(OneNode):
    """A cluster whose first node tells its state after the second one has."""

    def __init__(self) -> None:
        super().__init__(refused(404))
        self._second_told = trio.Event()

    async def channel_state(self, address: str, topic: str, channel: str) -> bytes:
        if address == NODE:
            await self._second_told.wait()
        self._second_told.set()
        return self._tell()


def test_nodes_that_cannot_undo_are_named_in_the_order_in_which_they_were_asked() -> None:
    receipt = carried_out(SlowFirst(), before=picture.snapshot(), nodes=(NODE, "n2:4151"))
    assert [step.address for step in receipt.steps] == [NODE, "n2:4151"]
    assert [text.partition(": ")[0] for text in receipt.no_undo] == [
        f"Cannot be undone on {node}" for node in (NODE, "n2:4151")
    ]
