"""The names of nsq_to_file's files, and when the next file begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from nsqtools.rotation import FileNames, Rotation, file_names, format_datetime, with_revision

WHEN = datetime(2026, 1, 5, 13, 4, 9, tzinfo=timezone(timedelta(hours=1), "CET"))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("%Y", "2026"), ("%y", "26"), ("%m", "01"), ("%d", "05"), ("%B", "January"), ("%b", "Jan"), ("%A", "Monday"),
        ("%a", "Mon"), ("%H", "13"), ("%I", "01"), ("%M", "04"), ("%S", "09"), ("%p", "PM"), ("%Z", "CET"),
        ("%z", "+0100"), ("%%", "%"),
        ("%q%j%", "%q%j%"), ("%%Y", "%Y"), ("1 2 15 2006 Jan MST PM", "1 2 15 2006 Jan MST PM"), ("", ""),
        ("%Y-%m-%d_%H", "2026-01-05_13"),
    ],
)  # fmt: skip
def test_percent_codes(code: str, text: str) -> None:
    assert format_datetime(code, WHEN) == text


@pytest.mark.parametrize(("hour", "text"), [(0, "12 AM"), (11, "11 AM"), (12, "12 PM"), (23, "11 PM")])
def test_hours_by_half_days(hour: int, text: str) -> None:
    assert format_datetime("%I %p", WHEN.replace(hour=hour)) == text


def test_a_zone_west_of_greenwich() -> None:
    assert format_datetime("%z", WHEN.replace(tzinfo=timezone(-timedelta(hours=3, minutes=30)))) == "-0330"


def names(pattern: str, *, identifier: str = "", gzip: bool = False, revisions: bool = False) -> FileNames:
    return file_names(
        pattern, "%H", topic="t", host="a.example", host_identifier=identifier, pid=42, gzip=gzip,
        has_revisions=revisions,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("<TOPIC>.<HOST><REV>.<DATETIME>.log", "t.a.13.log"),
        ("<TOPIC>/<TOPIC>.<PID>", "t/t.42"),
        ("<DATETIME>/<DATETIME>", "13/13"),
        ("%Y.<TOPIC>", "%Y.t"),
    ],
)
def test_names(pattern: str, name: str) -> None:
    assert names(pattern).at(WHEN) == name


@pytest.mark.parametrize(("identifier", "host"), [("", "a"), ("x", "x"), ("<SHORT_HOST>-<HOSTNAME>", "a-a.example")])
def test_the_host_can_be_said_otherwise(identifier: str, host: str) -> None:
    assert names("<HOST>", identifier=identifier).at(WHEN) == host


def test_gzip_adds_its_ending_once() -> None:
    assert names("x<REV>", gzip=True, revisions=True).at(WHEN) == "x<REV>.gz"
    assert names("x<REV>.gz", gzip=True, revisions=True).at(WHEN) == "x<REV>.gz"


def test_revisions_have_six_digits() -> None:
    name = names("x<REV>.log", revisions=True).at(WHEN)
    assert [with_revision(name, number) for number in (0, 1, 1234567)] == [
        "x-000000.log", "x-000001.log", "x-1234567.log",
    ]  # fmt: skip


def test_a_revision_needs_its_place() -> None:
    with pytest.raises(ValueError, match="missing <REV> in --filename-format when gzip, rotation, or work dir enabled"):
        names("<TOPIC>", revisions=True)


def opened(rotation: Rotation, *, name: str = "n<REV>", size: int = 0, now: float = 0.0) -> Rotation:
    rotation.opened(name, "/out/n-000000", rotation.next_revision(name), size=size, now=now)
    return rotation


def test_the_first_file_is_due_at_once() -> None:
    assert Rotation().due("n", 0.0) == ""


def test_a_new_name_is_due() -> None:
    assert opened(Rotation()).due("m<REV>", 1.0) == "new filename m<REV>, rotating..."
    assert opened(Rotation()).due("n<REV>", 10**9) is None


def test_a_file_that_is_too_old_is_due() -> None:
    rotation = opened(Rotation(interval=1.0), now=5.0)
    assert rotation.due("n<REV>", 6.0) is None
    assert rotation.due("n<REV>", 6.100283741) == "1.100283741s since last open, rotating..."


def test_a_file_that_is_too_big_is_due_and_what_was_in_it_counts() -> None:
    rotation = opened(Rotation(size=100), size=69)
    rotation.grown(31)
    assert rotation.due("n<REV>", 0.0) is None
    rotation.grown(1)
    assert rotation.due("n<REV>", 0.0) == "/out/n-000000 currently 101 bytes (> 100), rotating..."


def test_revisions_count_within_a_name() -> None:
    rotation = opened(opened(Rotation()))
    assert (rotation.revision, rotation.next_revision("n<REV>"), rotation.next_revision("m<REV>")) == (1, 2, 0)


def test_a_closed_file_is_forgotten() -> None:
    rotation = opened(Rotation(size=1, interval=1.0))
    rotation.closed()
    assert rotation.due("n<REV>", 10.0) == ""
    assert rotation.next_revision("n<REV>") == 1


def test_a_datetime_knows_utc() -> None:
    assert format_datetime("%Z%z", WHEN.astimezone(UTC)) == "UTC+0000"
