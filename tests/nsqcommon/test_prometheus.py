"""Prometheus' text format."""

from __future__ import annotations

from math import inf

from nsqcommon.prometheus import Metric, Sample, counter, exposition, gauge


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
