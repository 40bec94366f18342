from __future__ import annotations

import pytest

from nsqadmin.access import Identity, Right
from nsqadmin.cluster.model import Health
from nsqadmin.palette.commands import COMMANDS, TaskQueue, help_lines
from nsqadmin.palette.query import COMMAND_WORDS, Verb, parse
from tests.nsqadmin.palette.contexts import EVERYTHING, answer, commands, user
from tests.support.picture import node, snapshot, topic

OPERATOR = user(Right.VIEW, Right.OPERATE)
CHARGE = TaskQueue(name="shop.charge", topic="payments", channel="ledger", failed=3)


@pytest.mark.parametrize(
    ("text", "name", "href"),
    [
        (
            "pause billing",
            "Pause channel orders/billing",
            "/nsq/actions/pause_channel?topic=orders&channel=billing",
        ),
        ("hold topic orders", "Pause topic orders", "/nsq/actions/pause_topic?topic=orders"),
        ("resume fraud", "Unpause channel orders/fraud", "/nsq/actions/unpause_channel?topic=orders&channel=fraud"),
        ("purge ledger", "Empty channel payments/ledger", "/nsq/actions/empty_channel?topic=payments&channel=ledger"),
        ("delete topic payments", "Delete topic payments", "/nsq/actions/delete_topic?topic=payments"),
        ("seek ledger", "Move channel payments/ledger", "/nsq/actions/seek_channel?topic=payments&channel=ledger"),
        ("publish orders", "Publish to topic orders", "/nsq/actions/publish?topic=orders"),
        (
            "kick ledger",
            "Kick buried messages of channel payments/ledger",
            "/nsq/actions/kick_buried?topic=payments&channel=ledger",
        ),
        (
            "discard ledger",
            "Discard buried messages of channel payments/ledger",
            "/nsq/actions/discard_buried?topic=payments&channel=ledger",
        ),
        ("drain n1", "Drain n1:4151", "/nsq/nodes/drain?node=n1%3A4151"),
        ("forget n3", "Forget n3:4151", "/nsq/nodes/forget?node=n3%3A4151"),
        ("create invoices", "Create topic invoices", "/nsq/actions/create_topic?topic=invoices"),
        ("create topic In.V", "Create topic In.V", "/nsq/actions/create_topic?topic=In.V"),
        (
            "new channel orders/mail",
            "Create channel orders/mail",
            "/nsq/actions/create_channel?topic=orders&channel=mail",
        ),
        ("add orders mail", "Create channel orders/mail", "/nsq/actions/create_channel?topic=orders&channel=mail"),
        ("create", "Create a topic or channel", "/nsq/actions/create"),
    ],
)
def test_a_command_leads_to_the_page_that_asks(text: str, name: str, href: str) -> None:
    found = [it for it in answer(text).hits if it.kind == "command"]
    assert [(it.name, it.href, it.is_dialog) for it in found] == [(name, href, True)]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("pause fraud", "orders/fraud is paused already."),
        ("unpause billing", "orders/billing is not paused."),
        ("kick billing", "orders/billing has no buried messages."),
        ("drain n2", "n2:4151 is draining already."),
        ("drain n3", "n3:4151 does not answer."),
        ("drain go", "go:4151 is no Python nsqd, so it cannot be drained."),
        ("forget n1", "n1:4151 answers, so there is nothing to forget."),
        ("create orders", "Nothing to create: orders exists already."),
        ("create orders/billing", "Nothing to create: orders/billing exists already."),
        ("create channel mail", "Nothing to create: Name the topic, too: create channel topic/channel."),
    ],
)
def test_a_command_that_makes_no_sense_now_is_not_offered_and_says_why(text: str, note: str) -> None:
    assert commands(text) == []
    assert note in answer(text).notes


def test_nothing_to_do_is_said_only_if_every_node_answers() -> None:
    assert answer("discard", picture=snapshot(topic(name="t"))).notes == ("There is nothing to discard.",)
    silent = snapshot(topic(name="t"), nodes=(node("n1:4151"), node("n2:4151", health=Health.DOWN)))
    assert answer("discard", picture=silent).notes == ("Unknown: 1 of 2 nodes is silent.",)


def test_no_topic_is_created_with_an_invalid_name() -> None:
    assert commands("create ;<b>") == []
    assert "“;<b>” is not a valid name" in answer("create ;<b>").notes[0]


# Rights


@pytest.mark.parametrize(
    ("text", "identity", "is_offered"),
    [
        ("pause billing", user(Right.VIEW), False),
        ("pause billing", OPERATOR, True),
        ("pause billing", user(Right.VIEW, Right.OPERATE, topics=("payments",)), False),
        ("delete billing", OPERATOR, False),
        ("delete billing", user(Right.ADMIN), True),
        ("empty billing", OPERATOR, False),
        ("seek billing", OPERATOR, False),
        ("kick ledger", OPERATOR, True),
        ("discard ledger", OPERATOR, False),
        ("drain n1", OPERATOR, False),
        ("drain n1", user(Right.ADMIN, topics=("orders",)), False),
        ("drain n1", user(Right.ADMIN), True),
        ("publish orders", OPERATOR, False),
        ("publish orders", user(Right.PUBLISH), True),
        ("publish orders", user(Right.PUBLISH, topics=("payments",)), False),
        ("create x", user(Right.VIEW), False),
        ("create x", user(Right.OPERATE, topics=("orders",)), False),
        ("mute orders", user(Right.VIEW), False),
        ("mute orders", OPERATOR, True),
        ("mute orders", user(Right.OPERATE, topics=("payments",)), False),
    ],
)
def test_a_command_is_only_offered_to_whom_it_is_allowed(text: str, identity: Identity, is_offered: bool) -> None:
    assert bool(commands(text, identity)) is is_offered


@pytest.mark.parametrize("text", [f"{verb} orders" for verb in COMMANDS if verb not in (Verb.RETRY, Verb.FORGET)])
def test_a_viewer_is_told_why_nothing_is_offered(text: str) -> None:
    assert "ben does not have the right" in answer(text, user(Right.VIEW)).notes[0]


def test_publishing_that_is_switched_off_is_not_offered() -> None:
    identity = Identity(user="ana", roles=EVERYTHING.roles)
    assert commands("publish orders", identity) == []
    assert "(--enable-publish)" in answer("publish orders", identity).notes[0]


def test_a_snapshot_file_offers_no_commands() -> None:
    for text in ("pause billing", "create x", "mute orders"):
        assert commands(text, can_change=False) == []
        assert answer(text, can_change=False).notes == ("This is a snapshot: nothing can be changed.",)


# Objects


def test_without_an_object_the_page_comes_first_and_then_what_is_in_trouble() -> None:
    assert commands("empty")[0] == "Empty topic orders"  # its channel fraud is a problem
    on_billing = commands("empty", topic="orders", channel="billing")
    assert on_billing[0] == "Empty channel orders/billing"
    assert len(on_billing) == len(set(on_billing)) == 5
    assert commands("pause", topic="orders", channel="fraud")[0] != "Pause channel orders/fraud"  # it is paused
    assert commands("pause", topic="none", channel="none") == commands("pause")


def test_hidden_topics_are_no_objects() -> None:
    both = commands("pause", user(Right.VIEW, Right.OPERATE, topics=("payments",)))
    assert both == ["Pause topic payments", "Pause channel payments/ledger"]


# Tasks and incidents


def test_failed_jobs_of_a_task_are_retried_in_the_queue_with_most_of_them() -> None:
    (found,) = (it for it in answer("retry charge", tasks=(CHARGE,)).hits if it.kind == "command")
    assert found.name == "Retry failed jobs of shop.charge"
    assert found.href == "/nsq/actions/retry_task?topic=payments&channel=ledger&task=shop.charge"


@pytest.mark.parametrize(
    ("task", "identity"),
    [
        (TaskQueue(name="shop.charge", topic="payments", channel="ledger", failed=0), EVERYTHING),
        (TaskQueue(name="shop.charge", topic="orders", channel="billing"), EVERYTHING),  # nothing is buried there
        (TaskQueue(name="shop.charge", topic="gone", channel="jobs"), EVERYTHING),
        (CHARGE, OPERATOR),  # who may not see which jobs these are
    ],
)
def test_a_task_without_failed_jobs_is_not_retried(task: TaskQueue, identity: Identity) -> None:
    found = answer("retry charge", identity, tasks=(task,))
    assert [it.kind for it in found.hits if it.kind == "command"] == []
    assert found.notes == ("shop.charge has no failed jobs.",)


def test_an_incident_is_muted_and_acknowledged() -> None:
    for text, mark in (("mute fraud", "mute"), ("silence fraud", "mute"), ("ack fraud", "acknowledge")):
        (found,) = (it for it in answer(text).hits if it.kind == "command")
        assert found.name.startswith(("Mute orders/fraud", "Acknowledge orders/fraud"))
        assert found.href.startswith("/nsq/incidents/")
        assert found.href.endswith(f"/mark?do={mark}")
    assert commands("unmute fraud") == []


def test_the_help_has_every_command_and_its_other_words() -> None:
    lines = " ".join(f"{example} {text}" for example, text in help_lines()).split()
    words = {word.strip("(),") for word in lines}
    assert set(COMMAND_WORDS) - words == {"search"}  # which has a line of its own
    for example, _ in help_lines():
        assert parse(example).is_whole_verb
