"""The JSON that receivers get about an incident."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nsqadmin.webhook.post import body_of, text_of
from tests.nsqadmin.webhook.incidents import post
from tests.support.picture import NOW

URL = "https://admin.example/incidents/k"


def test_a_post_has_the_fields_that_are_documented() -> None:
    sent = post(waiting=3008)
    assert json.loads(body_of(sent, url=URL, via="box")) == {
        "version": 1,
        "kind": "opened",
        "key": sent.key,
        "at": NOW + 10,
        "severity": "problem",
        "state": "open",
        "subject": "orders/billing",
        "verdict": "No consumer is connected",
        "since": NOW,
        "since_before": False,
        "is_recurring": False,
        "numbers": {"waiting": 3008, "incoming": 2.5, "channels": 1},
        "topics": [],
        "url": URL,
        "via": "box",
        "text": f"Problem: orders/billing: No consumer is connected (3,008 waiting) {URL}",
    }


@pytest.mark.parametrize(
    ("kind", "severity", "start"),
    [
        ("opened", "warning", "Warning: orders/billing: "),
        ("worse", "problem", "Worse, now a problem: orders/billing: "),
        ("closed", "problem", "Closed after 10 s: orders/billing: "),
    ],
)
def test_the_text_says_what_happened(kind: str, severity: str, start: str) -> None:
    text = text_of(post(kind, severity=severity), "")
    assert text.startswith(start)
    assert not text.endswith(" ")


def test_the_text_says_that_it_comes_and_goes() -> None:
    text = text_of(replace(post(), is_recurring=True), "")
    assert text.startswith("Problem that comes and goes: orders/billing: ")


def test_a_name_chosen_by_a_consumer_does_nothing_in_a_chat() -> None:
    text = text_of(post(subject="<!channel> @all [click](https://evil.example) `x`"), "")
    assert not set("<>[]`") & set(text)
    assert "@all" not in text


def test_a_long_name_is_cut() -> None:
    assert len(text_of(post(subject="x" * 10_000), "")) < 600
