from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import Finding, Severity, Snapshot
from nsqadmin.palette.index import Index, Place, differ_by_one
from nsqadmin.palette.query import Kind
from tests.support.picture import channel, channel_node, client, node, snapshot, topic


def finding(severity: Severity, topic: str = "", channel: str = "", weight: float = 1.0, node: str = "") -> Finding:
    return Finding(
        rule="D5", severity=severity, verdict="", advice="", topic=topic, channel=channel, node=node, weight=weight
    )


def cluster(*names: str, findings: tuple[Finding, ...] = ()) -> Snapshot:
    """Return a snapshot with these topics and channels; a channel is named as topic/channel."""
    channels: dict[str, list[str]] = {}
    for name in names:
        own, _, its = name.partition("/")
        channels.setdefault(own, []).extend([its] if its else [])
    topics = (topic(*(channel(topic=own, name=it) for it in its), name=own) for own, its in channels.items())
    return snapshot(*topics, nodes=(), findings=findings)


def names(index: Index, text: str, most: int = 30) -> list[str]:
    return [it.name for it in index.find(text.split(), most)]


def test_what_begins_so_comes_before_what_has_it_inside_and_a_whole_part_before_both() -> None:
    index = Index(cluster("catalog/log", "log", "logins", "web-log", "prologue"))
    assert names(index, "log") == ["log", "catalog/log", "logins", "web-log", "catalog", "prologue"]
    assert names(index, "nothing like it") == []


def test_every_word_has_to_match() -> None:
    index = Index(cluster("orders/billing", "orders/fraud", "payments/billing"))
    assert names(index, "billing orders") == ["orders/billing"]


def test_among_equal_matches_the_one_in_most_trouble_comes_first() -> None:
    findings = (
        finding(Severity.WARNING, "a", "shipping", 9.0),
        finding(Severity.PROBLEM, "orders", "shipping", 2.0),
        finding(Severity.PROBLEM, "returns", "shipping", 5.0),
        finding(Severity.INFO, "z", "shipping", 99.0),
    )
    index = Index(cluster("a/shipping", "orders/shipping", "returns/shipping", "z/shipping", findings=findings))
    assert names(index, "shipping") == ["returns/shipping", "orders/shipping", "a/shipping", "z/shipping"]
    assert names(index, "shipp", 2) == ["returns/shipping", "orders/shipping"]


def test_a_topic_is_in_as_much_trouble_as_its_worst_channel() -> None:
    index = Index(cluster("orders-eu/c", "orders-us/c", findings=(finding(Severity.PROBLEM, "orders-us", "c"),)))
    assert names(index, "orders", 1) == ["orders-us"]


def test_a_closer_match_comes_before_one_in_trouble() -> None:
    index = Index(cluster("orders", "orders-old", findings=(finding(Severity.PROBLEM, "orders-old"),)))
    assert names(index, "orders") == ["orders", "orders-old"]


def test_a_channel_comes_before_a_node_and_a_consumer_that_begin_like_it() -> None:
    shipping = channel(channel_node(clients=(client(hostname="ship-01"),)), topic="orders", name="shipping")
    index = Index(snapshot(topic(shipping, name="orders"), nodes=(node("ship-node:4151"),)))
    assert [it.kind for it in index.find(["ship"], 9)] == [Kind.CHANNEL, Kind.NODE, Kind.CONSUMER]
    assert index.find(["ship-01"], 1)[0].kind is Kind.CONSUMER


def test_a_consumer_is_found_by_host_and_by_an_id_of_its_own() -> None:
    clients = (
        client(hostname="worker-7.example", client_id="worker-7"),
        client(hostname="worker-8.example", client_id="biller"),
    )
    index = Index(snapshot(topic(channel(channel_node(clients=clients)))))
    assert names(index, "worker-7") == ["worker-7.example"]
    assert names(index, "biller") == ["biller"]


def test_wanted_places_are_looked_up_only_until_there_are_enough() -> None:
    index = Index(cluster(*(f"topic-{number:03}" for number in range(200))))
    asked: list[str] = []

    def is_wanted(place: Place) -> bool:
        asked.append(place.name)
        return place.name >= "topic-005"

    found = index.find(["topic"], 3, is_wanted=is_wanted)
    assert [it.name for it in found] == ["topic-005", "topic-006", "topic-007"]
    assert len(asked) == 8


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("biling", "billing"),
        ("billling", "billing"),
        ("bulling", "billing"),
        ("iblling", "billing"),
        ("blng", ""),
        ("ivl", ""),
        ("evemts", "events"),
    ],
)
def test_one_typing_error_is_corrected(typed: str, meant: str) -> None:
    index = Index(cluster("shop.events/billing", "shop.events/mail"))
    assert index.correction(typed) == meant


def test_no_correction_leads_to_a_hidden_name() -> None:
    index = Index(cluster("secret", "public"))
    assert index.correction("secert", is_wanted=lambda it: it.topic != "secret") == ""


WORDS = st.text("ab", min_size=1, max_size=6)


@given(WORDS, st.integers(0, 6), st.sampled_from("ab"))
def test_each_single_error_is_one(word: str, at: int, letter: str) -> None:
    at = min(at, len(word) - 1)
    swapped = word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    for wrong in (
        word[:at] + word[at + 1 :],
        word[:at] + letter + word[at:],
        word[:at] + "c" + word[at + 1 :],
        swapped,
    ):
        assert wrong == word or differ_by_one(wrong, word)
        assert wrong == word or differ_by_one(word, wrong)


@given(WORDS, WORDS)
def test_what_counts_as_one_error_is_one(one: str, other: str) -> None:
    """By all that one error can make of a word."""
    made = {one[:at] + one[at + 1 :] for at in range(len(one))}
    made |= {one[:at] + it + one[at:] for at in range(len(one) + 1) for it in "ab"}
    made |= {one[:at] + it + one[at + 1 :] for at in range(len(one)) for it in "ab"}
    made |= {one[:at] + one[at : at + 2][::-1] + one[at + 2 :] for at in range(len(one) - 1)}
    assert differ_by_one(one, other) == (other in made and other != one)


NAMES = st.text("a/b. \u00df\u0130\x00<", max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=8, unique=True), NAMES)
def test_each_match_is_found_once_and_nothing_else(given: list[tuple[str, str]], typed: str) -> None:
    topics: dict[str, list[str]] = {}
    for own, its in given:
        topics.setdefault(own, []).append(its)
    picture = snapshot(
        *(topic(*(channel(topic=own, name=it) for it in its), name=own) for own, its in topics.items()), nodes=()
    )
    words = typed.lower().split()
    found = [(it.kind, it.topic, it.channel) for it in Index(picture).find(words, 1000)]
    expected = {(Kind.TOPIC, own, "") for own in topics} | {(Kind.CHANNEL, own, its) for own, its in given}
    assert len(found) == len(set(found))
    matching = {
        it
        for it in expected
        if all(word in f"/{it[1]}{'/' * (it[0] is Kind.CHANNEL)}{it[2]}/".lower() for word in words)
    }
    assert set(found) == matching
