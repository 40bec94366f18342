"""The book follows incidents over time: begin, numbers, changes, blips, and what people said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgpack
import pytest

from nsqadmin.cluster.model import Activity, Finding, Severity, Snapshot
from nsqadmin.diagnosis.incident import Counts, Mark, Open
from nsqadmin.diagnosis.incident_book import BLIP, MOST, Book, in_view
from nsqadmin.diagnosis.marks import muted_until
from tests.support.outage import TENANTS, outage
from tests.support.picture import NOW, channel, channel_node, snapshot, topic, viewer

ANA = Mark(by="ana", at=NOW, note="looking at it")


def picture(
    depth: int = 10, *, at: float = 0.0, name: str = "orders", channel_name: str = "c", **fields: object
) -> Snapshot:
    """Return a picture `at` seconds after the first one, in which a channel has no consumer."""
    known: dict[str, object] = {"rule": "D3", "severity": Severity.PROBLEM, "since": NOW + at, "weight": float(depth)}
    found = Finding(verdict="No consumer", advice="a", topic=name, channel=channel_name, **{**known, **fields})  # type: ignore[arg-type]
    it = channel(channel_node(depth=depth), topic=name, name=channel_name)
    return snapshot(topic(it, name=name), findings=(found,), taken_at=NOW + at)


def quiet(at: float) -> Snapshot:
    return replace(picture(at=at), findings=())


def kept_for_long(book: Book, *pictures: Snapshot) -> Open:
    for it in pictures:
        book.observe(it)
    (only,) = book.open()
    return only


def started(*entries: Activity) -> Book:
    """Return a book that has seen a calm cluster."""
    book = Book(lambda: entries)
    for at in (-20.0, -15.0, -10.0):
        book.observe(quiet(at))
    return book


def test_numbers_then_and_now() -> None:
    shown = kept_for_long(started(), picture(1200), picture(15_000, at=60), picture(12_031, at=120))
    assert shown.then is not None
    assert (shown.then.waiting, shown.incident.numbers.waiting, shown.peak) == (1200, 12_031, 15_000)
    assert (shown.began, shown.began_before, shown.peak_at) == (NOW, False, NOW + 60)


def test_what_was_there_at_the_start_may_have_begun_earlier() -> None:
    assert kept_for_long(Book(), picture()).began_before


def test_a_blip_keeps_the_begin() -> None:
    shown = kept_for_long(started(), picture(), quiet(60), picture(7, at=65))
    assert (shown.began, shown.returned) == (NOW, 1)
    assert shown.then is not None
    assert shown.then.waiting == 10


def test_after_a_while_it_is_another_incident() -> None:
    book = started()
    book.observe(picture())
    book.acknowledge(book.open()[0].key, ANA)
    shown = kept_for_long(book, quiet(60), quiet(61 + BLIP), picture(at=70 + BLIP))
    assert (shown.began, shown.returned, shown.acknowledged) == (NOW + 70 + BLIP, 0, None)


def test_growth_is_judged_over_half_a_minute() -> None:
    book = started()
    assert not kept_for_long(book, picture(10), picture(11, at=5)).is_growing
    assert kept_for_long(book, picture(12, at=31)).is_growing
    assert kept_for_long(book, picture(5, at=36)).is_growing
    assert not kept_for_long(book, picture(5, at=62)).is_growing


# What changed just before


def entry(what: str, at: float, text: str = "", **about: object) -> Activity:
    return Activity(at=NOW + at, what=what, text=text or what, **about)  # type: ignore[arg-type]


def test_what_changed_just_before_is_what_concerns_it() -> None:
    activity = (  # the newest first
        entry("pause_channel", -30, user="ana", result="ok", topic="orders", channel="c"),
        entry("consumers_gone", -40, topic="orders", channel="other"),
        entry("node_down", -60, nodes=("n2:4151",)),
        entry("topic_appeared", -90, topic="elsewhere"),
        entry("channel_appeared", -3600, topic="orders", channel="c"),
    )
    shown = kept_for_long(started(*activity), picture())
    assert [it.what for it in shown.changes] == ["node_down", "pause_channel"]


def test_what_a_sweep_sees_later_still_counts() -> None:
    entries: list[Activity] = []
    book = Book(lambda: entries)
    book.observe(picture())
    entries.append(entry("node_down", 10, nodes=("n1:4151",)))
    assert len(kept_for_long(book, picture(at=15)).changes) == 1
    entries.insert(0, entry("node_up", 900, nodes=("n1:4151",)))
    assert len(kept_for_long(book, picture(at=905)).changes) == 1


def test_a_burst_is_a_change() -> None:
    before = picture()
    burst = Finding(
        rule="D11", severity=Severity.INFO, verdict="A burst: 90/s", advice="a", topic="orders", since=NOW - 20
    )
    book = started()
    book.observe(replace(before, findings=(*before.findings, burst)))
    (shown,) = [it for it in book.open() if it.incident.severity is Severity.PROBLEM]
    assert [it.text for it in shown.changes] == ["orders: a burst: 90/s"]


# What people say


def test_marks_move_incidents_down_and_out_of_sight() -> None:
    book = started()
    book.observe(outage())
    attention, muted, remarks = in_view(book.open())
    assert (len(attention), muted, bool(remarks)) == (4, [], True)
    first, second = attention[:2]
    assert book.acknowledge(first.key, ANA)
    assert book.mute(second.key, replace(ANA, until=NOW + 900))
    attention, muted, _ = in_view(book.open())
    assert attention[-1].key == first.key  # after all others
    assert attention[-1].acknowledged == ANA
    assert [(it.key, it.state) for it in muted] == [(second.key, "muted")]


def test_a_mark_can_be_taken_back() -> None:
    book = started()
    book.observe(picture())
    key = book.open()[0].key
    book.acknowledge(key, ANA)
    book.mute(key, replace(ANA, until=NOW + 900))
    version = book.version
    book.acknowledge(key, None)
    book.mute(key, None)
    assert book.open()[0].state == "open"
    assert book.version == version + 2
    assert not book.acknowledge("nothing", ANA)


def test_what_is_muted_speaks_again_when_the_time_is_over() -> None:
    book = started()
    book.observe(picture())
    book.mute(book.open()[0].key, replace(ANA, until=NOW + 900))
    assert kept_for_long(book, quiet(100), picture(at=890)).muted
    assert not kept_for_long(book, picture(at=901)).muted


def test_tomorrow_morning_is_eight_oclock() -> None:
    evening = datetime(2026, 3, 1, 22, 15, tzinfo=UTC).timestamp()
    until = muted_until("morning", evening, UTC)
    assert until is not None
    assert datetime.fromtimestamp(until, UTC) == datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
    assert muted_until("15m", 100.0) == 1000.0
    assert muted_until("for ever", 100.0) is None


# Viewers


def test_hidden_topics_are_in_no_incident() -> None:
    book = started(entry("pause_channel", -310, result="ok", topic="tenant_001.events", channel="indexer"))
    book.observe(outage())
    seen = book.seen_by(viewer("tenant_007.events"))
    (pattern,) = [it for it in seen if it.incident.topics]
    assert pattern.incident.title == "tenant_*.events/indexer: 1 channel has no consumer"
    assert (pattern.incident.numbers.waiting, pattern.then, pattern.peak, pattern.changes) == (30, None, None, ())
    (whole,) = [it for it in book.open() if it.key == pattern.key]
    assert (whole.incident.numbers.channels, len(whole.changes)) == (TENANTS, 1)
    assert book.seen_by(viewer("*")) is book.open()


# Bounds and restarts


def test_the_book_is_bounded() -> None:
    book = Book()
    names = [
        f"{'abcdefghij'[number % 10]}{'klmnopqrst'[number // 10 % 10]}" * (1 + number // 100) for number in range(1500)
    ]
    for at, part in enumerate((names[:1200], names[1200:])):
        its = [picture(number + 1, name=name, channel_name=f"{name}-c") for number, name in enumerate(part)]
        found = tuple(it.findings[0] for it in its)
        book.observe(snapshot(*(it.topics[0] for it in its), findings=found, taken_at=NOW + at))
        assert len(book.open()) == len(part)
        assert len(book.dump()["records"]) <= MOST + len(part)
    shown = book.open()
    book.observe(quiet(30))
    assert len(book.dump()["records"]) <= MOST
    assert not book.mute(shown[0].key, replace(ANA, until=NOW + 900))  # it is over


def test_begins_and_marks_survive_a_restart() -> None:
    before, after = started(), Book()
    shown = kept_for_long(before, picture(1200), picture(5000, at=60))
    before.acknowledge(shown.key, ANA)
    before.mute(shown.key, replace(ANA, until=NOW + 900))
    after.load(msgpack.unpackb(msgpack.packb(before.dump(), default=lambda value: value())))
    again = kept_for_long(after, picture(4000, at=120))
    assert (again.began, again.began_before, again.peak) == (NOW, False, 5000)
    assert again.acknowledged == ANA
    assert again.muted is not None


@pytest.mark.parametrize("dumped", [None, [], {}, {"format": 1}, {"format": 2, "records": [7]}])
def test_a_file_of_something_else_is_refused(dumped: object) -> None:
    with pytest.raises(ValueError, match=r"expected|missing"):
        Book().load(dumped)


def test_counts_are_of_incidents_and_of_what_people_said_about_them() -> None:
    book = Book()
    problem, warning = picture(), picture(name="mail", severity=Severity.WARNING)
    remark = picture(name="bulk", severity=Severity.INFO)
    whole = snapshot(
        *(it.topics[0] for it in (problem, warning, remark)),
        findings=(*problem.findings, *warning.findings, *remark.findings),
        taken_at=NOW,
    )
    book.observe(whole)
    assert book.counts() == Counts(problems=1, warnings=1, acknowledged=0, muted=0)
    first, second, _ = book.open()
    book.acknowledge(first.key, ANA)
    assert book.counts() == Counts(problems=1, warnings=1, acknowledged=1, muted=0)
    book.mute(second.key, replace(ANA, until=NOW + 60))
    assert book.counts() == Counts(problems=1, warnings=0, acknowledged=1, muted=1)
    assert book.counts(viewer("mail")) == Counts(problems=0, warnings=0, acknowledged=0, muted=1)


def test_forty_findings_with_one_cause_count_once() -> None:
    book = Book()
    book.observe(outage())
    assert len(outage().findings) > sum(book.counts()[:2]) == len(in_view(book.open())[0])
