from __future__ import annotations

from nsqadmin.cluster.model import Snapshot
from nsqadmin.cluster.versions import REMEMBERED, Versions
from tests.support.picture import NOW, channel, channel_node, client, snapshot, topic


def picture(at: float, *agents: str) -> Snapshot:
    clients = tuple(client(user_agent=agent) for agent in agents)
    return snapshot(topic(channel(channel_node(clients=clients))), taken_at=NOW + at)


def texts(*pictures: Snapshot) -> list[str]:
    versions = Versions()
    return [event.text for it in pictures for event in versions.events(it)]


def test_a_new_version_is_an_event_with_the_old_one() -> None:
    versions = Versions()
    assert list(versions.events(picture(0, "shop/1.4", "shop/1.4"))) == []
    (event,) = versions.events(picture(5, "shop/1.5"))
    assert (event.what, event.at, event.topic, event.channel) == ("consumer_version", NOW + 5, "t", "c")
    assert event.text == "channel t/c has consumers of another version: shop/1.5, before: shop/1.4"


def test_a_deployment_is_one_event_however_it_goes() -> None:
    rolling = (picture(0, "a/1", "a/1"), picture(5, "a/1", "a/2"), picture(10, "a/2"), picture(15, "a/2", "a/2"))
    stopped_first = (picture(0, "a/1"), picture(5), picture(10), picture(15, "a/2"))
    for pictures in (rolling, stopped_first):
        assert len(texts(*pictures)) == 1


def test_consumers_that_come_and_go_are_no_news() -> None:
    assert texts(picture(0), picture(5, "a/1"), picture(10), picture(15, "a/1")) == []
    assert texts(*(picture(5 * it, "a/1", *["b/1"] * (it % 2 == 0)) for it in range(10))) == []


def test_what_went_long_ago_is_new_when_it_is_back() -> None:
    later = REMEMBERED + 20
    gone = [picture(at, "a/2") for at in range(10, int(later), 10)]
    assert len(texts(picture(0, "a/1"), picture(5, "a/2"), *gone, picture(later, "a/1"))) == 2


def test_a_channel_that_was_long_without_consumers_remembers_the_last_ones() -> None:
    quiet = [picture(at) for at in range(5, int(3 * REMEMBERED), 60)]
    assert texts(picture(0, "a/1"), *quiet, picture(3 * REMEMBERED, "a/1")) == []
    assert len(texts(picture(0, "a/1"), *quiet, picture(3 * REMEMBERED, "a/2"))) == 1
