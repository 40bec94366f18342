"""Readers of logs without a channel: what nsqd remembers about them, and what not."""

from __future__ import annotations

import json

import pytest

from nsqd.readers import MOST, MOST_OF_A_TOPIC, BadReport, Readers, Report, parse_report, readers_json

SECOND = 1_000_000_000


def report(sequence: int = 0, *, name: str = "land", log: str = "a", into: str = "/t") -> Report:
    return Report(name=name, log=log, sequence=sequence, into=into)


def test_a_report_replaces_the_one_before() -> None:
    readers = Readers()
    readers.heard("t", report(5), 1 * SECOND)
    readers.heard("t", report(9), 3 * SECOND)
    (reader,) = readers.of("t")
    assert (reader.report.sequence, reader.heard, reader.committed, reader.rate) == (9, 3 * SECOND, 3 * SECOND, 2.0)


def test_a_report_without_progress_is_a_sign_of_life() -> None:
    readers = Readers()
    readers.heard("t", report(5), 1 * SECOND)
    readers.heard("t", report(5), 3 * SECOND)
    (reader,) = readers.of("t")
    assert (reader.heard, reader.committed, reader.rate) == (3 * SECOND, 1 * SECOND, 0.0)


def test_the_rate_follows_a_reader_that_slows_down() -> None:
    readers = Readers()
    for second in range(600):
        readers.heard("t", report(1000 * second), second * SECOND)
    assert readers.of("t")[0].rate == pytest.approx(1000)
    for second in range(600):
        readers.heard("t", report(599_000 + second), (600 + second) * SECOND)
    assert readers.of("t")[0].rate == pytest.approx(1, rel=0.1)


def test_a_reader_that_begins_anew_has_no_rate_yet() -> None:
    readers = Readers()
    readers.heard("t", report(5), 1 * SECOND)
    readers.heard("t", report(9), 2 * SECOND)
    readers.heard("t", report(3), 3 * SECOND)
    assert (readers.of("t")[0].report.sequence, readers.of("t")[0].rate) == (3, None)
    readers.heard("t", report(7, log="b"), 4 * SECOND)
    assert readers.of("t")[0].rate is None


def test_a_clock_that_was_set_back_breaks_nothing() -> None:
    readers = Readers()
    readers.heard("t", report(5), 9 * SECOND)
    readers.heard("t", report(6), 1 * SECOND)
    assert (readers.of("t")[0].heard, readers.of("t")[0].rate) == (1 * SECOND, None)


def test_one_command_lands_in_two_tables() -> None:
    readers = Readers()
    readers.heard("t", report(5, into="/b"), 1)
    readers.heard("t", report(9, into="/a"), 2)
    assert [it.report.into for it in readers.of("t")] == ["/a", "/b"]


def test_what_a_reader_lacks_counts_in_the_log_that_is_there() -> None:
    readers = Readers()
    readers.heard("t", report(5, log="a"), 1)
    (reader,) = readers.of("t")
    assert (reader.place(0, "a"), reader.missed(0, "a")) == (5, 0)
    assert (reader.place(8, "a"), reader.missed(8, "a")) == (8, 3), "retention was faster"
    assert (reader.place(2, "b"), reader.missed(2, "b")) == (2, 0), "it has committed nothing of the new log"


def test_the_longest_silent_one_of_a_topic_gives_way() -> None:
    readers = Readers()
    for number in range(MOST_OF_A_TOPIC):
        readers.heard("t", report(name=f"r{number}"), 100 - number)
    readers.heard("t", report(name="r63"), 200)
    readers.heard("t", report(name="new"), 300)
    names = {it.report.name for it in readers.of("t")}
    assert len(names) == MOST_OF_A_TOPIC
    assert "r62" not in names, "it was silent for the longest time"


def test_the_longest_silent_one_of_all_topics_gives_way() -> None:
    readers = Readers()
    for number in range(MOST):
        readers.heard(f"t{number}", report(), number)
    readers.heard("new", report(), MOST)
    assert sum(1 for _ in readers) == MOST
    assert not readers.of("t0")
    assert readers.of("new")


def test_a_topic_may_lose_its_only_reader_to_its_next() -> None:
    readers = Readers()
    readers.heard("old", report(), 0)
    for number in range(1, MOST):
        readers.heard(f"t{number}", report(), number)
    readers.heard("old", report(name="second"), MOST)
    assert [it.report.name for it in readers.of("old")] == ["second"]


def test_who_is_forgotten_is_back_with_the_next_report() -> None:
    readers = Readers()
    readers.heard("t", report(5), 1)
    assert not readers.forget("t", "land", "/elsewhere")
    assert readers.forget("t", "land", "/t")
    assert not readers.forget("t", "land", "/t")
    assert not list(readers)
    readers.heard("t", report(6), 2)
    assert readers.of("t")


def test_readers_go_with_their_topic() -> None:
    readers = Readers()
    readers.heard("gone", report(), 1)
    readers.heard("there", report(), 1)
    readers.forget_topics_but({"there"})
    assert readers.topics == ["there"]


def test_a_change_is_unsaved() -> None:
    readers = Readers()
    assert readers.is_saved
    readers.heard("t", report(), 1)
    assert not readers.is_saved
    readers.is_saved = True
    assert readers.forget("t", "land", "/t")
    assert not readers.is_saved
    readers.is_saved = True
    assert not readers.forget("t", "land", "/t")
    assert readers.is_saved


def test_readers_survive_their_file() -> None:
    readers = Readers()
    readers.heard("t", report(5), 1 * SECOND)
    readers.heard("t", report(9), 3 * SECOND)
    readers.heard("u", report(1, name="é"), 3 * SECOND)
    other = Readers()
    other.restore(json.loads(json.dumps(readers_json(readers))))
    assert list(other) == list(readers)


@pytest.mark.parametrize("text", [[], {"t": {}}, {"t": [1]}, {"t": [{"name": "a", "log": "b", "sequence": 1}]}, None])
def test_a_file_that_makes_no_sense_changes_nothing(text: object) -> None:
    readers = Readers()
    readers.heard("t", report(), 1)
    with pytest.raises(BadReport):
        readers.restore(text)
    assert readers.of("t")


def test_a_report_as_it_comes() -> None:
    text = b'{"name":"land","log":"ab","sequence":7,"into":"/t","format":"delta","host":"h","more":[]}'
    assert parse_report(text) == Report("land", "ab", 7, "/t", "delta", "h")
    assert parse_report(b'{"name":"a","log":"b","sequence":0}') == Report("a", "b", 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected an object"),
        (b'{"log":"b","sequence":0}', "name is missing"),
        (b'{"name":"a","sequence":0}', "log is missing"),
        (b'{"name":"a","log":"b"}', "sequence"),
        (b'{"name":"a","log":"b","sequence":-1}', "sequence"),
        (b'{"name":"a","log":"b","sequence":true}', "sequence"),
        (b'{"name":"a","log":"b","sequence":1.5}', "sequence"),
        (b'{"name":"a","log":"b","sequence":9223372036854775808}', "sequence"),
        (b'{"name":1,"log":"b","sequence":0}', "name"),
        (b'{"name":"%s","log":"b","sequence":0}' % (b"a" * 129), "name"),
        (b'{"name":"a\\nb","log":"b","sequence":0}', "name"),
        (b'{"name":"\\ud800","log":"b","sequence":0}', "name"),
        (b'{"name":"a","log":"b","sequence":0,"into":null}', "into"),
    ],
)
def test_what_is_no_report_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(BadReport, match=reason):
        parse_report(text)
