"""The pipeline's counts: its file as series, and files that are not what they should be."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nsqadmin.cluster.pipeline import BYTES, MESSAGES, SIZES, parse
from nsqadmin.cluster.pipeline_file import PipelineResults
from nsqadmin.parts.charts import counts


def window(start: str, messages: int, **more: Any) -> dict[str, Any]:
    sizes = dict.fromkeys(SIZES, 10)
    return {"start": start, "messages": messages, "rate": messages / 60, "bytes": messages * 10, **sizes, **more}


def results(*windows: dict[str, Any], **more: Any) -> str:
    head = {"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:05:00Z"}
    return json.dumps({**head, "topics": {"orders": list(windows)}, **more})


def test_a_window_in_which_nothing_came_is_zero() -> None:
    found = parse(results(window("2026-03-01T12:00:00Z", 60), window("2026-03-01T12:02:00Z", 120)))["orders"]
    assert found.series.values[MESSAGES] == (1.0, 0.0, 2.0)
    assert found.series.values[BYTES] == (10.0, 0.0, 20.0)
    assert found.series.values["size_p50"] == (10.0, None, 10.0)
    assert (found.series.step, found.updated - found.series.end) == (60.0, 120.0)


def test_a_long_pause_does_not_make_a_long_chart() -> None:
    found = parse(results(window("2020-01-01T00:00:00Z", 1), window("2026-03-01T12:00:00Z", 60)))["orders"]
    assert len(found.series.values[MESSAGES]) == 1440


def test_three_charts_are_drawn() -> None:
    found = counts(parse(results(window("2026-03-01T12:00:00Z", 60), window("2026-03-01T12:01:00Z", 6)))["orders"])
    assert [it.title for it in found.charts] == ["Messages", "Bytes", "Size of a message"]
    assert all(not it.unknown for it in found.charts)


def test_the_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    read = PipelineResults(str(path))
    assert read.of_topic("orders") is None
    path.write_text(results(window("2026-03-01T12:00:00Z", 60)))
    assert read.of_topic("orders") is not None
    assert read.of_topic("clicks") is None
    path.unlink()
    assert read.of_topic("orders") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", results(v=2), results(window_seconds=0), results(topics=[]), results({"start": "noon"})]
)
def test_what_is_not_understood_is_said_once_and_no_topic_has_it(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    read = PipelineResults(str(path))
    with caplog.at_level(logging.WARNING):
        assert read.of_topic("orders") is None
        assert read.of_topic("orders") is None
    assert len(caplog.records) == 1
