"""What worker threads share, on a real nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from nsqclient import Stopped
from nsqjobs.addresses import parse_url
from nsqjobs.link import Link
from tests.support.process import Nsqd, eventually

TIMEOUT = 30.0


def link_to(nsqd: Nsqd) -> Link:
    return Link(parse_url(f"nsq://127.0.0.1:{nsqd.tcp[1]}"))


@pytest.fixture
def link(nsqd: Nsqd) -> Iterator[Link]:
    with closing(link_to(nsqd)) as link:
        yield link


def test_what_is_held_at_the_end_is_given_back_uncounted(nsqd: Nsqd, topic: str, link: Link) -> None:
    for body in (b"done", b"runs"):
        link.publish(topic, body, headers={})
    subscription = link.subscribe(topic, prefetch=2)
    done, runs = subscription.take(TIMEOUT), subscription.take(TIMEOUT)
    assert done is not None
    assert runs is not None
    done.finish()
    link.close()
    runs.finish()  # too late
    with closing(link_to(nsqd)) as other:
        again = other.subscribe(topic, prefetch=1).take(TIMEOUT)
        assert again is not None
        assert (again.body, again.attempts) == (runs.body, 1)
        again.finish()
        eventually(lambda: other.counts(topic).undone == 0, TIMEOUT)


def test_a_bug_in_the_thread_that_receives_ends_the_wait(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr("nsqjobs.link.give_back_early", fail)
    link = link_to(nsqd)
    link.publish(topic, b"x", headers={})
    subscription = link.subscribe(topic, prefetch=1)
    with pytest.raises(Stopped):
        eventually(lambda: subscription.take(1.0), TIMEOUT)
    with pytest.raises(ExceptionGroup):
        link.close()
