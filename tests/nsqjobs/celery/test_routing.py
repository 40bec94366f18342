import pytest

from nsqjobs.celery import routing
from nsqjobs.celery.routing import level_of, matcher


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("#", "task.started", True),
        ("#", "", True),
        ("worker.#", "worker.heartbeat", True),
        ("worker.#", "task.started", False),
        ("t.*", "t.1", True),
        ("t.*", "t.1.2", False),
        ("t", "t.1", False),
        ("a+b", "a+b", True),
        ("a+b", "aab", False),
    ],
)
def test_bindings_match_as_in_kombu(pattern: str, key: str, matches: bool) -> None:
    assert matcher(pattern)(key) is matches


def test_a_lasting_queue_is_a_topic_of_its_name() -> None:
    source = routing.lasting("mails")
    assert (source.topic, source.channel) == ("mails", "jobs")


def test_a_level_is_a_topic_of_its_own() -> None:
    assert routing.lasting("mails", 6).topic == "mails.p6"


def test_a_mailbox_is_a_channel_of_its_exchange() -> None:
    source = routing.bound("celery@a.celery.pidbox", "celery.pidbox", "fanout", "", since=5.0)
    assert source.topic == "celery.pidbox#ephemeral"
    assert source.channel.endswith("#ephemeral")
    assert source.accepts is None
    assert source.since == 5.0


def test_a_direct_exchange_has_a_topic_for_each_key() -> None:
    assert routing.bound("q", "replies", "direct", "one", 0).topic == routing.exchange_topic("replies", "direct", "one")
    assert routing.exchange_topic("replies", "direct", "one") != routing.exchange_topic("replies", "direct", "two")


def test_a_topic_exchange_has_one_topic_whose_consumers_choose() -> None:
    source = routing.bound("q", "celeryev", "topic", "worker.#", 0)
    assert source.topic == routing.exchange_topic("celeryev", "topic", "task.sent")
    assert source.accepts is not None
    assert not source.accepts("task.sent")


@pytest.mark.parametrize(("priority", "level"), [(0, 0), (2, 0), (3, 3), (5, 3), (9, 9)])
def test_a_priority_belongs_to_the_step_below_it(priority: int, level: int) -> None:
    assert level_of(priority, (0, 3, 6, 9)) == level


def test_without_steps_there_is_one_level() -> None:
    assert level_of(9, ()) == 0
