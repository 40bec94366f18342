"""Cards say what, since when, because of what and the numbers; the text for a chat says the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nsqadmin.cluster.model import Activity, Evidence, Finding, Severity
from nsqadmin.diagnosis.incident import Mark, Open
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.parts.incident_cards import (
    MOST_CARDS,
    IncidentFilter,
    Moment,
    as_text,
    card_of,
    listing,
    now_and_then,
    time_line,
)
from nsqadmin.parts.links import Links
from nsqadmin.parts.rendering import Static, environment
from tests.support.outage import outage
from tests.support.picture import NOW, channel, channel_node, node, snapshot, topic

LINKS = Links("/nsq")
PAUSED = Activity(
    at=NOW - 30,
    what="pause_channel",
    text="pause channel orders/c",
    user="ana",
    result="ok",
    topic="orders",
    channel="c",
)


def opened(rule: str = "D3", *, depth: int = 12_031, then: int = 1200, **fields: object) -> Open:
    """Return an incident of one channel that has begun with another number."""
    book = Book(lambda: (PAUSED,))
    for number in range(3):
        book.observe(snapshot(taken_at=NOW - 60 + number))
    known: dict[str, object] = {"rule": rule, "severity": Severity.PROBLEM, "topic": "orders", "channel": "c"}
    known = {"verdict": "No consumer is connected", **known, **fields}
    found = Finding(
        advice="Start one.",
        since=NOW,
        evidence=(Evidence(label="consumers", value="0"),),
        **known,  # type: ignore[arg-type]
    )
    for at, waiting in enumerate((then, depth)):
        it = channel(channel_node(depth=waiting), topic="orders")
        book.observe(snapshot(topic(it, name="orders"), findings=(found,), taken_at=NOW + 60 * at))
    (only,) = book.open()
    return only


def outage_of(*, unattended: int = 38) -> tuple[Open, ...]:
    book = Book()
    book.observe(outage(unattended=unattended))
    return book.open()


def test_a_card_has_the_numbers_then_and_now() -> None:
    assert now_and_then(opened()) == "12,031 waiting (was 1,200)"
    assert now_and_then(opened(depth=7, then=7)) == "7 waiting"
    assert now_and_then(opened(depth=0, then=0)) == ""


def test_a_card_tells_how_much_of_what_waits_is_last_known() -> None:
    """Seen: a title with 2,277 waiting, which was the known part, above a line with 3,416."""
    it = opened(depth=3416, then=474)

    def written(last_known: int) -> str:
        known = replace(it.incident.numbers, last_known=last_known)
        return now_and_then(replace(it, incident=replace(it.incident, numbers=known)))

    assert written(1139) == "3,416 waiting (was 474), 1,139 of them last known"
    assert written(3416) == "3,416 waiting (was 474), last known"


def test_a_card_has_the_last_change_and_where_to_go_on() -> None:
    card = card_of(opened(), LINKS)
    assert card.reason is not None
    assert (card.reason.text, card.reason.who, card.reason.at) == (PAUSED.text, "ana", PAUSED.at)
    assert (card.primary.label, card.primary.href) == ("Show the channel", "/nsq/topics/orders/c")
    assert card.href == f"/nsq/incidents/{card.open.key}"


@pytest.mark.parametrize(
    ("rule", "action", "label"),
    [("D1", "unpause_channel", ""), ("D7", "", "Show its consumers"), ("D14", "", "Show the channel")],
)
def test_the_button_fits_the_rule(rule: str, action: str, label: str) -> None:
    primary = card_of(opened(rule, action=action), LINKS).primary
    assert (primary.action, primary.label) == (action, label)


def test_the_button_fits_the_cause() -> None:
    labels = {it.incident.subject: card_of(it, LINKS).primary.label for it in outage_of()}
    assert labels["n2:4151"] == "Show the node"
    assert labels["tenant_*.events/indexer"] == "Show all 38"
    assert labels["shop-worker/1.5-rc1"] == "Show its consumers"


def test_the_reason_is_the_last_change_before_the_beginning() -> None:
    it = opened()
    (change,) = it.changes
    later = replace(change, at=it.began + 30, text="later")
    assert [card_of(replace(it, changes=changes), LINKS).reason for changes in ((change, later), (later,))] == [
        card_of(it, LINKS).reason,
        Moment(at=later.at, text="later", who="ana"),
    ]


@pytest.mark.parametrize(
    ("earlier", "when", "ago"),
    [(60, "just before", ""), (61, "last event before", "1m 1s"), (300, "last event before", "5m"), (301, "", "")],
)
def test_an_earlier_event_is_not_just_before(earlier: int, when: str, ago: str) -> None:
    """Seen: "just before", for something that had nothing to do with it 8.5 minutes earlier."""
    it = opened()
    (change,) = it.changes
    card = card_of(replace(it, changes=(replace(change, at=it.began - earlier),)), LINKS)
    assert (card.when, card.earlier, card.reason is None) == (when, ago, not when)


@pytest.mark.parametrize(
    ("fields", "chips"),
    [
        ({"is_inferred": True}, ["likely cause"]),
        ({"is_held": True, "seen": NOW - 20}, []),  # so rare messages don't make it blink
        ({"is_held": True, "seen": NOW - 40}, ["not found since 22:12:40 UTC"]),
        ({"is_frozen": True, "seen": NOW - 5}, ["last known 22:13:15 UTC"]),
    ],
)
def test_chips_say_what_is_uncertain(fields: dict[str, object], chips: list[str]) -> None:
    """Seen: "likely" (what?), and "ending" on a card whose number went up."""
    made = environment(LINKS, Static()).get_template("parts/incident_cards.html").make_module({"now": NOW}).marks  # type: ignore[attr-defined]
    it = opened()
    found = replace(it.incident.findings[0], **fields)  # type: ignore[arg-type]
    incident = replace(it.incident, findings=(found,), is_inferred=found.is_inferred)
    written = str(made(replace(it, incident=incident, is_growing=False)))
    assert [re.sub("<.*?>", "", text) for text in re.findall(r'<span class="chip".*?>(.*?)</span>', written)] == chips


def test_the_loss_of_a_node_is_no_reason_for_itself() -> None:
    (lost,) = [it for it in outage_of() if it.incident.subject == "n2:4151"]
    itself = Activity(at=lost.began, what="node_down", text="it is lost", nodes=(lost.incident.subject,))
    other = replace(itself, text="another one, too", nodes=("n9:4151",))
    assert card_of(replace(lost, changes=(itself,)), LINKS).reason is None
    assert card_of(replace(lost, changes=(other, itself)), LINKS).reason == Moment(
        at=lost.began, text="another one, too"
    )


def test_a_pattern_names_some_of_its_members() -> None:
    (card,) = [card_of(it, LINKS) for it in outage_of() if it.incident.subject.startswith("tenant")]
    assert [name for name, _ in card.names] == [f"tenant_00{number}.events/indexer" for number in (1, 2, 3)]
    assert card.others == 35


def test_the_overview_has_eight_cards_and_says_how_many_more() -> None:
    found = tuple(
        Finding(rule=f"X{number}", severity=Severity.PROBLEM, verdict="v", advice="a", node=f"n{number}:1")
        for number in "abcdefghijklmnopqrst"
    )
    book = Book()
    book.observe(snapshot(findings=tuple(replace(it, verdict=it.node) for it in found)))
    page = listing(book.open(), LINKS, most=MOST_CARDS)
    assert (len(page.cards), page.left_out, page.findings) in {(8, 12, 20), (1, 0, 20)}


def test_the_time_line_goes_from_the_change_to_the_marks() -> None:
    it = replace(opened(), peak=20_000, peak_at=NOW + 10, acknowledged=Mark(by="ben", at=NOW + 50, note="on it"))
    assert [(line.text, line.who) for line in time_line(it)] == [
        ("pause channel orders/c", "ana"),
        ("It began, with 1,200 messages waiting", ""),
        ("20,000 messages were waiting, the most so far", ""),
        ("Acknowledged: on it", "ben"),
    ]


def test_the_text_has_everything_for_a_chat() -> None:
    text = as_text(opened(), now=NOW + 60, url="http://admin/incidents/1")
    assert text.splitlines()[:3] == [
        "PROBLEM: orders/c: No consumer is connected",
        "open since 2023-11-14T22:13:20Z (1m)",
        "12,031 waiting (was 1,200)",
    ]
    assert "2023-11-14T22:12:50Z  pause channel orders/c (ana)" in text
    assert "orders/c: No consumer is connected (consumers 0)" in text
    assert "What to do: Start one." in text
    assert text.endswith("http://admin/incidents/1\n")


def test_the_text_has_no_control_characters() -> None:
    hostile = opened(verdict="x\x1b[31m\nPROBLEM: forged", depth=1)
    text = as_text(hostile, now=NOW, url="u")
    assert "\x1b" not in text
    assert "\nPROBLEM: forged" not in text


@pytest.mark.parametrize(
    ("chosen", "subjects"),
    [
        (IncidentFilter(severity="warning"), {"archive/cold"}),
        (IncidentFilter(rule="D7"), {"shop-worker/1.5-rc1"}),
        (IncidentFilter(words="TENANT_017"), {"tenant_*.events/indexer"}),
        (IncidentFilter(words="nowhere"), set()),
    ],
)
def test_the_list_is_filtered(chosen: IncidentFilter, subjects: set[str]) -> None:
    page = listing(outage_of(), LINKS, most=100, chosen=chosen)
    assert {card.open.incident.subject for card in page.cards} == subjects
    assert page.rules == ("D1", "D3", "D4", "D7", "D10", "D16")


def test_a_node_that_is_down_is_one_card() -> None:
    found = Finding(
        rule="D16", severity=Severity.PROBLEM, verdict="n1:4151 does not answer", advice="a", node="n1:4151"
    )
    book = Book()
    book.observe(snapshot(nodes=(node(),), findings=(found,)))
    (card,) = listing(book.open(), LINKS, most=8).cards
    assert card.open.incident.title == "n1:4151: does not answer"
