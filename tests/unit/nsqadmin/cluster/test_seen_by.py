from __future__ import annotations

from nsqadmin.cluster.model import Producer
from nsqadmin.cluster.view import seen_by
from tests.support.picture import snapshot, topic


def producer(name: str, *topics: str) -> Producer:
    counts = tuple((it, 10, 1.0) for it in topics)
    return Producer(node="n1:4151", client_id=name, hostname=name, remote_address="r:1", counts=counts)


def test_a_producer_is_seen_by_what_it_publishes_to_topics_that_are_seen() -> None:
    picture = snapshot(
        topic(name="open"),
        topic(name="hidden"),
        producers=(producer("both", "open", "hidden"), producer("secret", "hidden")),
    )
    seen = seen_by(picture, "open".__eq__)
    assert [it.name for it in seen.topics] == ["open"]
    assert seen.topic("hidden") is None
    assert seen.producers == (producer("both", "open"),)


def test_who_sees_all_topics_sees_the_picture_itself() -> None:
    picture = snapshot(topic(name="open"))
    assert seen_by(picture, lambda _: True) is picture
