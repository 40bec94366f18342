"""The book follows incidents over time: begin, numbers, changes, blips, and what people said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from time import process_time

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqadmin.access import Identity
from nsqadmin.cluster.model import Activity, Finding, Health, Severity, Snapshot, Topic
from nsqadmin.diagnosis.impact import impact
from nsqadmin.diagnosis.incident import ChangeKind, Counts, Mark, Open
from nsqadmin.diagnosis.incident_book import BLIP, MOST, Book, in_view
from nsqadmin.diagnosis.marks import muted_until
from nsqadmin.diagnosis.rules import Effect
from nsqadmin.webhook.ledger import Ledger
from tests.support.outage import TENANTS, outage
from tests.support.picture import NOW, channel, channel_node, node, snapshot, topic, viewer

RANKS = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}
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


def test_what_appeared_after_the_start_has_begun_after_it() -> None:
    """A rule that looks back over minutes says nothing about a time when its topic didn't exist."""
    known, book = snapshot(topic(name="old"), nodes=(node(),), taken_at=NOW - 10), Book()
    book.observe(known)
    found = replace(picture(at=90, since=NOW + 90, window=300.0), nodes=(node(),))
    shown = kept_for_long(book, replace(found, topics=(*known.topics, *found.topics)))
    assert (shown.began, shown.began_before) == (NOW + 90, False)


def test_one_that_comes_back_soon_begins_again_and_keeps_its_past() -> None:
    shown = kept_for_long(started(), picture(), picture(at=5, since=NOW), quiet(60), picture(7, at=65))
    assert (shown.began, shown.returned) == (NOW + 65, 1)
    assert shown.then is not None
    assert shown.then.waiting == 7
    times = "from 2023-11-14T22:13:20Z to 2023-11-14T22:13:25Z"
    assert [it.text for it in shown.turns] == [f"Problem {times}: orders/c: No consumer, 10 waiting"]


def test_a_second_death_has_its_own_beginning() -> None:
    book = started()
    book.observe(node_picture(105, DEATH, is_down=True))
    book.observe(node_picture(300))
    (change,) = book.observe(node_picture(405, replace(DEATH, since=NOW + 400), is_down=True))
    assert (change.kind, change.it.began, change.it.began_before) == (ChangeKind.OPENED, NOW + 400, False)


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


def test_what_happens_to_channels_is_no_reason_for_the_death_of_a_node() -> None:
    """Seen: "just before: channel orders/billing has consumers now", for a node that hung 8 minutes later."""
    activity = (
        entry("consumers_back", 90, topic="orders", channel="c"),
        entry("node_down", 80, nodes=("n2:4151",)),
    )
    book = started(*activity)
    lacks = Finding(rule="D17", severity=Severity.INFO, verdict="v", advice="a", topic="orders", channel="c")
    shown = node_picture(105, replace(DEATH, since=NOW + 100), is_down=True)
    silent = channel(channel_node(depth=3), topic="orders", silent=("n1:4151",))
    book.observe(replace(shown, topics=(topic(silent, name="orders"),), findings=(*shown.findings, lacks)))
    (death,) = [it for it in book.open() if it.incident.subject == "n1:4151"]
    assert "orders" in death.incident.topics
    assert [it.what for it in death.changes] == ["node_down"]


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


def node_picture(at: float, *findings: Finding, is_down: bool = False) -> Snapshot:
    health = Health.DOWN if is_down else Health.OK
    return snapshot(nodes=(node(health=health, depth=9_702),), findings=findings, taken_at=NOW + at)


POLICY = Finding(rule="D26", severity=Severity.WARNING, verdict="differs", advice="a", node="n1:4151", since=NOW)
DEATH = Finding(
    rule="D16",
    severity=Severity.PROBLEM,
    verdict="is down",
    advice="a",
    node="n1:4151",
    facet="reach",
    since=NOW + 100,
    weight=59.0,
)


def test_a_muted_warning_about_a_node_hides_nothing_of_its_death() -> None:
    book = started()
    book.observe(node_picture(0, POLICY))
    book.mute(book.open()[0].key, replace(ANA, until=NOW + 900))
    (change,) = book.observe(node_picture(105, DEATH, POLICY, is_down=True))
    assert (change.kind, change.it.incident.title) == (ChangeKind.OPENED, "n1:4151: is down")
    death, policy = book.open()
    assert (death.state, policy.state) == ("open", "muted")
    assert (death.began, death.began_before, death.turns) == (NOW + 100, False, ())
    assert death.then is not None
    assert death.then.waiting == 9_702
    assert book.counts() == Counts(problems=1, warnings=0, acknowledged=0, muted=1)


def test_a_mute_ends_when_it_gets_worse_and_the_time_line_says_why() -> None:
    book = started()
    book.observe(picture(100, severity=Severity.WARNING, rule="D6"))
    key = book.open()[0].key
    book.mute(key, replace(ANA, until=NOW + 900))
    assert book.observe(picture(200, at=5, severity=Severity.WARNING, rule="D6", since=NOW)) == ()
    (change,) = book.observe(picture(300, at=10, rule="D6"))
    assert (change.kind, change.it.state, change.it.key) == (ChangeKind.WORSE, "open", key)
    begun, reopened = change.it.turns
    assert begun.text == "Warning since 2023-11-14T22:13:20Z: orders/c: No consumer, 100 waiting"
    assert reopened.text == (
        "Muted by ana until 2023-11-14T22:28:20Z; reopened because this is a problem now: No consumer"
    )
    assert change.it.then is not None
    assert (change.it.began, change.it.then.waiting) == (NOW + 10, 300)
    book.observe(picture(300, at=15, severity=Severity.WARNING, rule="D6"))
    assert book.open()[0].state == "open"  # it doesn't hide again by itself


def test_another_rule_ends_a_mute_and_an_acknowledgement() -> None:
    book = started()
    book.observe(picture(rule="D7"))
    key = book.open()[0].key
    book.acknowledge(key, ANA)
    book.mute(key, replace(ANA, until=NOW + 900))
    book.observe(picture(at=5, rule="D3"))
    (shown,) = book.open()
    assert (shown.key, shown.state) == (key, "open")
    assert [it.text.partition(";")[0] for it in shown.turns] == [
        "Acknowledged by ana",
        "Muted by ana until 2023-11-14T22:28:20Z",
    ]


def test_a_mute_that_outlives_its_incident_holds_for_what_it_covered() -> None:
    book = started()
    book.observe(picture(rule="D7", severity=Severity.WARNING))
    book.mute(book.open()[0].key, replace(ANA, until=NOW + 9000))
    book.observe(quiet(5))
    book.observe(picture(at=5 + 2 * BLIP, rule="D7", severity=Severity.WARNING))
    assert book.open()[0].state == "muted"
    book.observe(quiet(10 + 2 * BLIP))
    (change,) = book.observe(picture(at=15 + 2 * BLIP, rule="D7"))
    assert (change.kind, book.open()[0].state) == (ChangeKind.OPENED, "open")


def group_of(at: float, *names: str, severity: Severity = Severity.PROBLEM, rule: str = "D3") -> Snapshot:
    its = [picture(5, name=name, at=at, severity=severity, rule=rule) for name in names]
    found = tuple(replace(it.findings[0], since=NOW) for it in its)
    return snapshot(*(it.topics[0] for it in its), findings=found, taken_at=NOW + at)


def test_a_group_that_shrinks_and_grows_keeps_its_mark_until_there_is_a_new_problem() -> None:
    book = started()
    book.observe(group_of(0, "t1", "t2", "t3", "t4"))
    key = book.open()[0].key
    book.mute(key, replace(ANA, until=NOW + 900))
    for at, names in enumerate((("t1",), ("t1", "t2", "t3"), ("t4", "t2"), ("t1", "t2", "t3", "t4"))):
        assert book.observe(group_of(5 + 5 * at, *names)) == ()
        assert [(it.key, it.state) for it in book.open()] == [(key, "muted")]
    (change,) = book.observe(group_of(50, "t1", "t2", "t3", "t4", "t5"))
    assert (change.kind, change.it.key, change.it.state) == (ChangeKind.WORSE, key, "open")
    assert change.it.turns[-1].text.endswith("reopened because this is new: t5/c: No consumer")


def test_what_was_muted_alone_stays_muted_in_a_group_but_does_not_hide_the_others() -> None:
    book = started()
    book.observe(group_of(0, "t1", "t2"))
    for it in book.open():
        book.mute(it.key, replace(ANA, until=NOW + 900))
    assert {it.state for it in book.open()} == {"muted"}
    book.observe(group_of(5, "t1", "t2", "t3"))
    assert [(it.incident.subject, it.state) for it in book.open()] == [("t*/c", "open")]


def test_marks_survive_a_restart_and_cover_the_same() -> None:
    before = started()
    before.observe(picture(rule="D7", severity=Severity.WARNING))
    before.mute(before.open()[0].key, replace(ANA, until=NOW + 900))
    for rule, severity, state in (
        ("D7", Severity.WARNING, "muted"),
        ("D7", Severity.PROBLEM, "open"),
        ("D3", Severity.WARNING, "open"),
    ):
        after = Book()
        after.load(msgpack.unpackb(msgpack.packb(before.dump(), default=lambda value: value())))
        after.observe(picture(at=60, rule=rule, severity=severity))
        assert after.open()[0].state == state


found = st.fixed_dictionaries(
    {
        name: st.none() | st.tuples(st.sampled_from(["D6", "D7", "D8"]), st.sampled_from(list(Severity)))
        for name in "abcd"
    }
)
events = st.lists(st.tuples(found, st.sampled_from(["", "", "", "mute", "acknowledge", "restart"])), max_size=25)


@settings(max_examples=60)
@given(events)
def test_a_mark_never_covers_a_rule_or_a_severity_that_was_not_there(
    script: list[tuple[dict[str, tuple[str, Severity] | None], str]],
) -> None:
    """Findings about four channels come and go, get worse and form groups, while people mark incidents."""
    book = started()
    marked: dict[str, dict[str, tuple[int, ...]]] = {
        "muted": {},
        "acknowledged": {},
    }  # by channel and rule: when marked
    for number, (by_name, event) in enumerate(script):
        at = 5.0 * number
        its = [
            picture(name=f"t{name}", at=at, rule=rule, severity=severity)
            for name, it in by_name.items()
            if it is not None
            for rule, severity in (it,)
        ]
        findings = tuple(finding for it in its for finding in it.findings)
        if event == "restart":
            book, before = Book(), book
            book.load(msgpack.unpackb(msgpack.packb(before.dump(), default=lambda value: value())))
        book.observe(snapshot(*(it.topics[0] for it in its), findings=findings, taken_at=NOW + at))
        for shown in book.open():
            for kind in ("muted", "acknowledged"):
                if getattr(shown, kind) is None:
                    continue
                for it in shown.incident.wrong:
                    known = marked[kind].get(it.key, ())
                    is_member = it.severity is not Severity.PROBLEM and any(
                        key.startswith(f"{it.rule}/") and min(ranks) <= RANKS[it.severity]
                        for key, ranks in marked[kind].items()
                    )
                    assert is_member or (known and min(known) <= RANKS[it.severity]), (kind, it)
        if event in ("mute", "acknowledge") and book.open():
            chosen = book.open()[number % len(book.open())]
            book.mute(chosen.key, replace(ANA, until=NOW + 9e9)) if event == "mute" else book.acknowledge(
                chosen.key, ANA
            )
            for it in chosen.incident.wrong:
                kind = "muted" if event == "mute" else "acknowledged"
                marked[kind][it.key] = (*marked[kind].get(it.key, ()), RANKS[it.severity])


# What listeners are told


def kinds(book: Book, shown: Snapshot) -> list[tuple[str, str]]:
    return [(it.kind.value, it.it.incident.subject) for it in book.observe(shown)]


def test_listeners_are_told_when_it_opens_gets_worse_and_closes() -> None:
    book = started()
    assert kinds(book, picture(severity=Severity.WARNING)) == [("opened", "orders/c")]
    assert kinds(book, picture(at=5, severity=Severity.WARNING)) == []
    assert kinds(book, picture(at=10)) == [("worse", "orders/c")]
    assert kinds(book, picture(at=15, severity=Severity.WARNING)) == []
    (closed,) = book.observe(quiet(20))
    assert (closed.kind, closed.at, closed.it.incident.severity) == (ChangeKind.CLOSED, NOW + 20, Severity.WARNING)
    assert kinds(book, picture(at=25)) == [("opened", "orders/c")]


def test_listeners_are_told_nothing_of_remarks_and_of_a_muted_incident_only_its_end() -> None:
    book = started()
    assert kinds(book, picture(severity=Severity.INFO)) == []
    assert kinds(book, quiet(5)) == []
    book.observe(picture(at=10))
    book.mute(book.open()[0].key, replace(ANA, until=NOW + 100))
    assert kinds(book, picture(at=12)) == []
    assert kinds(book, quiet(15)) == [("closed", "orders/c")]  # they know it as open
    assert kinds(book, picture(at=20)) == []
    assert kinds(book, quiet(25)) == []  # they don't know this one
    assert kinds(book, picture(at=30)) == []
    assert kinds(book, picture(at=101)) == [("opened", "orders/c")]  # the mute is over


def test_book_and_webhook_agree_on_what_is_open_whatever_is_muted() -> None:
    """Topics t1 to t3 form a group when all of them are there."""
    book, ledger, known = started(), Ledger(), set[str]()
    random = Random(7)
    for at in range(0, 3000, 5):
        names = [name for name in ("ant", "t1", "t2", "t3") if random.random() < 0.6]
        shown = group_of(at, *names, rule=random.choice(["D3", "D7"]), severity=random.choice(list(Severity)))
        changes = book.observe(shown)
        for change in changes:
            (known.discard if change.kind is ChangeKind.CLOSED else known.add)(change.it.key)
        ledger.posts_for(changes, book.present, NOW + at)
        assert {it.key for it in ledger.posts} == known
        for it in book.open():
            if random.random() < 0.2:
                book.mute(it.key, replace(ANA, until=NOW + at + random.choice([7, 100])))


def test_an_incident_that_is_absorbed_by_a_group_closes_when_its_findings_end() -> None:
    book = started()
    assert kinds(book, group_of(0, "t1", "t2")) == [("opened", "t1/c"), ("opened", "t2/c")]
    assert kinds(book, group_of(5, "t1", "t2", "t3")) == [("opened", "t*/c")]
    assert kinds(book, group_of(10, "t2", "t3")) == [("closed", "t1/c")]
    assert sorted(kinds(book, quiet(15))) == [("closed", "t*/c"), ("closed", "t2/c")]


def test_an_incident_that_is_absorbed_by_a_group_is_not_over() -> None:
    book = started()
    book.observe(group_of(0, "t1", "t2"))
    single = {it.key for it in book.open()}
    book.observe(group_of(5, "t1", "t2", "t3"))
    assert single.isdisjoint(it.key for it in book.open())
    assert single < book.present()
    book.observe(group_of(10, "t2", "t3"))
    assert len(single - book.present()) == 1
    book.observe(quiet(15))
    assert book.present() == set()


def test_an_incident_outlives_a_gap_between_two_snapshots_and_is_closed_in_the_end() -> None:
    """The machine has slept for an hour, or its clock was set."""
    book = started()
    assert kinds(book, picture()) == [("opened", "orders/c")]
    assert kinds(book, picture(at=BLIP + 3000, since=NOW)) == []
    shown = book.open()[0]
    assert (shown.began, shown.then, shown.turns) == (NOW, shown.incident.numbers, ())
    assert kinds(book, quiet(BLIP + 3005)) == [("closed", "orders/c")]


def test_a_group_of_what_is_known_is_no_news() -> None:
    book = started()
    book.observe(group_of(0, "t1", "t2"))
    book.observe(group_of(5, "t1", "t2", "t3"))
    assert kinds(book, group_of(10, "t1", "t2", "t3")) == []


def test_known_incidents_are_not_opened_again_after_a_restart() -> None:
    before, after = started(), Book()
    before.observe(picture())
    after.load(msgpack.unpackb(msgpack.packb(before.dump(), default=lambda value: value())))
    assert kinds(after, picture(at=60)) == []
    assert kinds(after, quiet(120)) == [("closed", "orders/c")]


# History


def test_a_worse_effect_begins_again_and_a_better_one_does_not() -> None:
    book = started()
    book.observe(picture(10, rule="D6"))
    book.observe(picture(40, at=60, rule="D7"))
    (shown,) = book.open()
    assert shown.then is not None
    assert (shown.began, shown.then.waiting) == (NOW + 60, 40)
    assert [it.text for it in shown.turns] == ["Problem since 2023-11-14T22:13:20Z: orders/c: No consumer, 10 waiting"]
    for at in range(65, 600, 5):
        book.observe(picture(90, at=at, rule=("D6", "D7")[at % 2]))
    (shown,) = book.open()
    assert (shown.began, len(shown.turns)) == (NOW + 60, 1)


def test_what_a_rule_finds_only_after_minutes_may_have_been_there_before() -> None:
    book = Book()
    book.observe(quiet(0))
    book.observe(quiet(5))
    book.observe(quiet(10))
    (early, late) = (picture(at=at, window=300.0, rule="D8") for at in (60, 400))
    book.observe(early)
    assert (book.open()[0].began, book.open()[0].began_before) == (NOW, True)
    book.observe(quiet(100))
    book.observe(quiet(900))
    book.observe(late)
    assert not started().open()
    other = started()
    other.observe(late)
    assert not other.open()[0].began_before


# Order


def test_problems_come_before_warnings_however_much_waits_there() -> None:
    """Seen: a paused channel, yellow, above a red one whose consumers fail, in a list that says "the worst first"."""
    failing = picture(0, weight=impact(Effect.WAITING, Severity.PROBLEM))
    paused_weight = impact(Effect.WAITING, Severity.WARNING, messages=59_157, speed=20.0)
    paused = picture(59_157, name="ship", severity=Severity.WARNING, weight=paused_weight)
    remark = picture(10**6, name="later", severity=Severity.INFO, weight=impact(Effect.WAITING, Severity.INFO))
    shown = snapshot(
        *(it.topics[0] for it in (paused, failing, remark)),
        findings=(*paused.findings, *failing.findings, *remark.findings),
        taken_at=NOW,
    )
    book = started()
    book.observe(shown)
    assert [it.incident.subject for it in book.open()] == ["orders/c", "ship/c", "later/c"]
    book.acknowledge(book.open()[0].key, ANA)
    assert [it.incident.subject for it in book.open()] == ["ship/c", "orders/c", "later/c"]


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


def test_a_silent_node_affects_all_of_its_channels_and_a_user_hears_of_their_own() -> None:
    """Seen: "this affects 2 channels", because there were other findings about the node's other nine."""
    frozen = Finding(rule="D8", severity=Severity.PROBLEM, verdict="v", advice="a", topic="t1", channel="c", since=NOW)
    topics = [
        topic(channel(channel_node(depth=1), topic=name, silent=("n1:4151",)), name=name) for name in ("t1", "t2", "t3")
    ]
    elsewhere = topic(channel(channel_node("n2:4151"), topic="t4"), name="t4")
    lacks = Finding(rule="D17", severity=Severity.INFO, verdict="v", advice="a", topic="t2", channel="c")
    book = started()
    shown = node_picture(105, DEATH, lacks, frozen, is_down=True)
    book.observe(replace(shown, topics=(*topics, elsewhere), _by_name={it.name: it for it in (*topics, elsewhere)}))

    def verdict_for(user: Identity) -> str:
        return next(it.incident.verdict for it in book.seen_by(user) if it.incident.subject == "n1:4151")

    assert verdict_for(viewer("*")).endswith("; this affects 3 channels")
    assert verdict_for(viewer("t1", "t2")).endswith("; this affects 2 channels")
    assert "affects" not in verdict_for(viewer("t4"))


def test_hidden_members_change_nothing_of_what_a_user_sees() -> None:
    """Whatever happens to topics that they don't see, users see the same incidents, in the same order and states."""
    ben = viewer("t1", "t2", "t3")
    quiet_book, loud_book = started(), started()
    mine = ("t1", "t2", "t3")
    for book, others in ((quiet_book, ()), (loud_book, ("t4", "t5"))):
        book.observe(group_of(0, *mine, severity=Severity.WARNING))
        book.mute(book.open()[0].key, replace(ANA, until=NOW + 900))
        its = (group_of(5, *mine, severity=Severity.WARNING), group_of(5, *others))
        found = tuple(finding for it in its for finding in it.findings)
        book.observe(snapshot(*(topic for it in its for topic in it.topics), findings=found, taken_at=NOW + 5))
    assert quiet_book.open()[0].state == "muted"
    assert loud_book.open()[0].state == "open"
    assert loud_book.seen_by(ben) == quiet_book.seen_by(ben)
    assert loud_book.seen_by(ben)[0].state == "muted"
    assert loud_book.counts(ben) == quiet_book.counts(ben)


def test_users_mark_what_they_see_and_nothing_else() -> None:
    ben = viewer("t1")
    book = started()
    book.observe(group_of(0, "t1", "t2", "t3"))
    key = book.open()[0].key
    assert book.mute(key, replace(ANA, by="ben", until=NOW + 900), ben)
    assert (book.seen_by(ben)[0].state, book.open()[0].state) == ("muted", "open")
    assert book.observe(group_of(5, "t1", "t2", "t3")) == ()
    assert (book.seen_by(ben)[0].state, book.open()[0].state, book.open()[0].turns) == ("muted", "open", ())
    book.mute(key, replace(ANA, until=NOW + 900))
    assert book.mute(key, None, ben)
    assert (book.seen_by(ben)[0].state, book.open()[0].state) == ("open", "open")
    assert not book.mute(key, ANA, viewer("other"))


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


def test_each_incident_is_opened_once_even_if_there_are_more_than_are_followed() -> None:
    book, opened = Book(), 0
    words = [f"{a}{b}{c}" for a in "abcdefghijk" for b in "abcdefghijk" for c in "abcdefghijk"]  # no common pattern
    assert len(words) > MOST
    for at in range(5):
        found = [
            Finding(
                rule="D3", severity=Severity.PROBLEM, verdict="v", advice="a", topic=word, weight=20 + (number + at) % 3
            )
            for number, word in enumerate(words)
        ]
        opened += len(book.observe(snapshot(*map(lone, words), findings=tuple(found), taken_at=NOW + 5 * at)))
    assert opened == MOST


def test_a_thousand_marks_one_after_the_other_are_cheap() -> None:
    """Each took 8 ms, because each built all indexes again."""
    book = Book()
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    found = [Finding(rule="D3", severity=Severity.PROBLEM, verdict="v", advice="a", topic=word) for word in words]
    book.observe(snapshot(*map(lone, words), findings=tuple(found), taken_at=NOW))
    began, keys = process_time(), [it.key for it in book.open()]
    assert all(book.mute(key, replace(ANA, until=NOW + 900)) for key in keys)
    assert {it.state for it in book.open()} == {"muted"}
    assert all(book.mute(key, None) for key in keys)
    assert {it.state for it in book.open()} == {"open"}
    assert process_time() - began < 2


def lone(name: str) -> Topic:
    return topic(channel(topic=name), name=name)


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
