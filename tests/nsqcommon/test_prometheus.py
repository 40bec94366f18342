"""Prometheus' text format."""

from __future__ import annotations

from math import inf

from nsqcommon.prometheus import Histogram, Metric, Sample, counter, exposition, gauge, histogram


def test_metric_has_help_type_and_value() -> None:
    assert exposition([counter("a_total", "How many.", 3), gauge("b", "Share.", 0.5)]) == (
        b"# HELP a_total How many.\n# TYPE a_total counter\na_total 3\n# HELP b Share.\n# TYPE b gauge\nb 0.5\n"
    )


def test_labels_and_help_are_escaped() -> None:
    text = exposition([gauge("a", "one\\two\nthree", 1, {"topic": 'x"y\\z\n', "c": "d"})]).decode()
    assert text == '# HELP a one\\\\two\\nthree\n# TYPE a gauge\na{topic="x\\"y\\\\z\\n",c="d"} 1\n'


def test_numbers_that_are_none() -> None:
    samples = tuple(Sample(value, {}) for value in (inf, -inf, inf - inf, 2.0**53))
    lines = exposition([Metric("a", "gauge", "", samples)]).decode().splitlines()[2:]
    assert lines == ["a +Inf", "a -Inf", "a NaN", "a 9007199254740992"]


def test_a_bucket_includes_the_smaller_ones() -> None:
    values = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 0.5, 7.0):
        values.observe(value)
    copied = values.copy()
    values.observe(0.0)
    assert exposition([histogram("a_seconds", "Time.", copied)]).decode().splitlines() == [
        "# HELP a_seconds Time.",
        "# TYPE a_seconds histogram",
        'a_seconds_bucket{le="0.1"} 1',
        'a_seconds_bucket{le="1"} 3',
        'a_seconds_bucket{le="+Inf"} 4',
        "a_seconds_sum 8.1",
        "a_seconds_count 4",
    ]
