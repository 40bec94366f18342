"""The outbox of one receiver: order, retries, and what is dropped."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.webhook.outbox import MOST_WAITING, RETRY_FOR, Outbox, Outcome
from nsqadmin.webhook.post import Post
from tests.nsqadmin.webhook.incidents import post


def an_outbox(*posts: Post, random: float = 1.0) -> Outbox:
    outbox = Outbox(lambda: random)
    for it in posts:
        assert outbox.add(it)
    return outbox


def kinds(outbox: Outbox) -> list[tuple[str, str]]:
    return [(it.kind.value, it.subject) for it in outbox.posts]


def test_the_newest_state_of_an_incident_takes_the_place_of_the_older_one() -> None:
    outbox = an_outbox(post("opened", "a", severity="warning"), post("opened", "b"), post("worse", "a"))
    assert kinds(outbox) == [("opened", "a"), ("opened", "b")]
    assert outbox.posts[0].severity == "problem"
    outbox.add(post("closed", "a"))
    assert kinds(outbox) == [("closed", "a"), ("opened", "b")]


def test_news_that_come_during_a_try_wait_for_its_end() -> None:
    outbox = an_outbox(post("opened", "a"))
    outbox.take()
    outbox.add(post("closed", "a"))
    assert outbox.answered(200, 0.0) is Outcome.SENT
    assert kinds(outbox) == [("closed", "a")]


def test_news_that_come_during_a_failed_try_join_it_at_the_front() -> None:
    outbox = an_outbox(post("opened", "a", severity="warning"), post("opened", "b"))
    outbox.take()
    outbox.add(post("worse", "a"))
    assert outbox.answered(500, 0.0) is Outcome.RETRY
    assert kinds(outbox) == [("opened", "a"), ("opened", "b")]
    assert outbox.posts[0].severity == "problem"


def test_pauses_grow_to_a_minute_and_differ_by_chance() -> None:
    for random, pauses in ((1.0, [1, 2, 4, 8, 16, 32, 60, 60]), (0.0, [0.5, 1, 2, 4, 8, 16, 30, 30])):
        outbox, now, seen = an_outbox(post(), random=random), 0.0, []
        for _ in pauses:
            outbox.take()
            outbox.not_answered(now)
            seen.append(outbox.not_before - now)
            now = outbox.not_before
        assert seen == pauses


@pytest.mark.parametrize(("asked", "pause"), [(30.0, 30.0), (86_400.0, 60.0), (0.0, 1.0)])
def test_a_receiver_may_ask_for_a_pause(asked: float, pause: float) -> None:
    outbox = an_outbox(post())
    outbox.take()
    assert outbox.answered(429, 100.0, retry_after=asked) is Outcome.RETRY
    assert outbox.not_before == 100.0 + pause


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 410, 422])
def test_a_refusal_is_not_retried(status: int) -> None:
    outbox = an_outbox(post("opened", "a"), post("opened", "b"))
    outbox.take()
    assert outbox.answered(status, 0.0) is Outcome.FAILED
    assert (outbox.failed, outbox.is_failing, outbox.not_before) == (1, True, 0.0)
    assert kinds(outbox) == [("opened", "b")]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_retried(status: int) -> None:
    outbox = an_outbox(post())
    outbox.take()
    assert outbox.answered(status, 0.0) is Outcome.RETRY


def test_a_post_is_given_up_after_half_an_hour() -> None:
    outbox, now, tries = an_outbox(post()), 0.0, 0
    outcome = Outcome.RETRY
    while outcome is Outcome.RETRY:
        now = outbox.not_before
        outbox.take()
        outcome, tries = outbox.not_answered(now), tries + 1
    assert outcome is Outcome.FAILED
    assert RETRY_FOR <= now < RETRY_FOR + 60
    assert (len(outbox), outbox.failed) == (0, 1)
    assert tries < 50


def test_the_oldest_is_dropped_if_too_many_wait() -> None:
    outbox = an_outbox(*(post("opened", f"t{number}") for number in range(MOST_WAITING)))
    assert not outbox.add(post("opened", "one more"))
    assert (len(outbox), outbox.dropped) == (MOST_WAITING, 1)
    assert kinds(outbox)[0] == ("opened", "t1")
    assert kinds(outbox)[-1] == ("opened", "one more")
    assert outbox.add(post("closed", "t1"))  # takes no place of its own


@given(st.lists(st.sampled_from(["add a", "add b", "add c", "take", 200, 500])))
def test_nothing_about_one_incident_comes_out_of_order_and_its_newest_state_comes(steps: list[str | int]) -> None:
    outbox, received = an_outbox(), defaultdict[str, list[int]](list)
    added: dict[str, int] = {}
    now, number, trying = 0.0, 0, None
    at_the_end: list[str | int] = [200]
    for _ in range(4):
        at_the_end += ["take", 200]
    for step in [*steps, *at_the_end]:
        now += 1.0
        if isinstance(step, int):
            if trying is not None and outbox.answered(step, now) is Outcome.SENT:
                received[trying.subject].append(trying.numbers.waiting)
            trying = None
        elif step == "take":
            trying = trying or outbox.take()
        else:
            number += 1
            added[step[-1]] = number
            outbox.add(post("worse", step[-1], waiting=number))
    assert len(outbox) == 0
    assert all(numbers == sorted(set(numbers)) for numbers in received.values())
    assert {subject: numbers[-1] for subject, numbers in received.items()} == added
