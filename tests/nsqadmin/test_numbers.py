from __future__ import annotations

import pytest

from nsqadmin import numbers

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("count", None, "–"),
        ("count", 0, "0"),
        ("count", 9_999, "9,999"),
        ("count", 10_000, "10.0k"),
        ("count", 65_190, "65.2k"),
        ("count", 652_000, "652k"),
        ("count", 999_600, "1.00M"),
        ("count", 1_314_448, "1.31M"),
        ("exact", 1_314_448, "1,314,448"),
        ("rate", None, "–"),
        ("rate", 0.0, "0/s"),
        ("rate", 0.04, "<0.1/s"),
        ("rate", 0.4, "0.4/s"),
        ("rate", 95.2, "95/s"),
        ("rate", 12_400.0, "12.4k/s"),
        ("net", 0.01, "0/s"),
        ("net", 55.2, "↑ 55/s"),
        ("net", -0.4, "↓ 0.4/s"),
        ("percent", 0.004, "0.4 %"),
        ("percent", 1.0, "100 %"),
        ("size", 999, "999 B"),
        ("size", 181_000_000, "181 MB"),
        ("size_rate", 19_040.0, "19.0 kB/s"),
        ("per_minute", 0.5, "30/min"),
        ("duration", None, "–"),
        ("duration", 0.0, "0 s"),
        ("duration", 0.000_4, "400 µs"),
        ("duration", 0.35, "350 ms"),
        ("duration", 4.2, "4.2 s"),
        ("duration", 48, "48 s"),
        ("duration", 20 * MINUTE, "20m"),  # NSQ's own page prints 0ns here
        ("duration", 768, "12m 48s"),
        ("duration", 3 * HOUR + 12 * MINUTE, "3h 12m"),
        ("duration", 2 * DAY + 4 * HOUR, "2d 4h"),
        ("duration", -90, "-1m 30s"),
    ],
)
def test_numbers_are_written_as_people_read_them(form: str, value: float | None, text: str) -> None:
    assert numbers.FORMS[form](value) == text


def test_what_was_counted_is_said_in_the_right_number() -> None:
    assert [numbers.several(it, "node") for it in (0, 1, 2)] == ["no nodes", "1 node", "2 nodes"]


def test_a_time_of_another_day_has_its_day() -> None:
    now = 1_700_000_000.0
    assert numbers.clock(now - 60, now) == "22:12:20 UTC"
    assert numbers.clock(now - DAY, now) == "13 Nov 22:13 UTC"
    assert numbers.clock(None, now) == "–"


def test_an_age_is_never_in_the_future() -> None:
    assert [numbers.ago(it) for it in (-3, 0.4, 3.9, None)] == ["just now", "just now", "3 s ago", "–"]
