"""One client may send much, but others have their turn in between, and the log does not grow with it."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import dpub, fin, nop, pub, req, touch
from nsqd.client.subscription import MOST_DOUBTFUL
from nsqd.client.work_budget import COST_OF_DEFERRAL, COST_OF_FAILURE, COST_OF_TOPIC, STRETCH
from tests.support.node import Client, Node


def steps_until_done(node: Node, client: Client) -> int:
    """Return how often the poller has to call the client again."""
    steps = 0
    while not client.handler.reading:
        assert client.handler.next_deadline < node.now + 0.001
        node.pass_time(0.001)
        steps += 1
    return steps


@pytest.mark.parametrize("command", [nop(), b"NOP\r\n", touch(b"0123456789abcdef")])
def test_a_flood_is_carried_out_some_commands_at_a_time(command: bytes) -> None:
    node = Node()
    client = node.consumer()
    client.say(command * (3 * STRETCH - 1) + b"CLS\n")
    assert not client.handler.reading
    assert steps_until_done(node, client) >= 2
    assert b"CLOSE_WAIT" in client.answers()


def test_what_comes_in_one_read_of_an_honest_publisher_is_carried_out_at_once() -> None:
    client = Node().client()
    client.say(pub("t", bytes(200)) * (120 * 1024 // 215))
    assert client.handler.reading


def test_what_comes_meanwhile_is_kept_in_its_order() -> None:
    node = Node()
    client = node.consumer()
    client.say(nop() * 3000)
    client.say(b"CLS\n")
    assert client.answers() == []
    steps_until_done(node, client)
    assert client.answers() == [b"CLOSE_WAIT"]


def test_who_has_said_all_is_heard_out_before_its_end() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000 + pub("t", b"x"))
    client.handler.end()
    node.turn()
    assert not client.handler.finished
    for _ in range(3):
        node.pass_time(0.001)
    assert client.answers() == [b"OK"]
    assert client.handler.finished


def test_who_is_dropped_meanwhile_is_gone() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000)
    client.handler.abort()
    node.pass_time(0.001)
    assert client.handler.aborted
    assert client.handler.finished


def test_heartbeats_go_on() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000)
    node.pass_time(30.0)
    assert client.answers() == [b"_heartbeat_"]


UNKNOWN = b"0123456789abcdef"


@pytest.mark.parametrize("command", [fin(UNKNOWN), b"FIN %b\r\n" % UNKNOWN, req(UNKNOWN, 0), touch(UNKNOWN)])
def test_what_fails_is_answered_a_few_at_a_time(command: bytes) -> None:
    """Two hundred clients that only cause errors would make each other, and everybody else, wait."""
    node = Node()
    client = node.consumer()
    client.say(command * 1000)
    first = len(client.answers())
    assert 0 < first <= STRETCH // COST_OF_FAILURE
    steps = steps_until_done(node, client)
    assert first + len(client.answers()) == 1000
    assert steps >= 1000 // first - 1


def test_after_a_fin_that_failed_they_are_taken_a_few_at_a_time() -> None:
    """One command stands for up to 512 FINs, so their number in one has to be bounded as well."""
    node = Node()
    client = node.consumer(ready=2500)
    publisher = node.client()
    for _ in range(4):
        publisher.say(pub("t", b"x") * 500)
    ids = [message.id for message in client.messages()]
    assert len(ids) == 2000
    client.say(b"".join(map(fin, ids)))
    assert client.handler.reading
    client.say(fin(UNKNOWN))
    client.say(b"".join(map(fin, ids)))
    failed = len(client.answers())
    assert failed <= 1 + MOST_DOUBTFUL
    steps_until_done(node, client)
    assert failed + len(client.answers()) == 1 + len(ids)


def test_deferrals_are_made_some_at_a_time() -> None:
    node = Node()
    client = node.client()
    client.answers(pub("t", b"makes the topic"))
    client.say(dpub("t", 1000, b"x") * 900)
    first = len(client.answers())
    assert first == STRETCH // COST_OF_DEFERRAL
    assert steps_until_done(node, client) >= 6
    assert first + len(client.answers()) == 900


def test_requeues_are_made_some_at_a_time() -> None:
    node = Node()
    client = node.consumer(ready=1000)
    node.client(b"  V2" + pub("t", b"x") * 1000)
    ids = [message.id for message in client.messages()]
    client.say(b"".join(req(message_id, 60_000) for message_id in ids))
    assert node.channel("t", "c").deferred_count == STRETCH // COST_OF_DEFERRAL
    steps_until_done(node, client)
    assert node.channel("t", "c").deferred_count == 1000


def test_topics_are_made_some_at_a_time() -> None:
    node = Node()
    client = node.client()
    client.say(b"".join(pub(f"topic_{number}", b"x") for number in range(20)))
    assert len(client.answers()) == STRETCH // COST_OF_TOPIC
    assert steps_until_done(node, client) >= 3


def test_failing_fins_are_logged_seldom() -> None:
    node = Node()
    client = node.consumer()
    count = 2500
    client.say(fin(UNKNOWN) * count)
    assert not client.handler.reading
    steps_until_done(node, client)
    assert client.answers() == [b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"] * count
    errors = [text for kind, text in client.notes if kind == "error"]
    assert len(errors) == 10
    client.handler.end()
    assert ("info", b"%d more lines about its messages were left out" % (count - 10)) in client.notes


def test_a_client_is_not_taken_for_silent_while_it_is_nsqd_that_is_late() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000 + pub("t", b"x"))
    node.pass_time(61.0)  # as if the process was stopped; the client's read deadline is 60 seconds
    for _ in range(3):
        node.pass_time(0.001)
    assert client.handler.reading
    assert client.answers()[-1] == b"OK"
