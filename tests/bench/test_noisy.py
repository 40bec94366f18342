"""The others' waits beside a large customer: what counts as one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import noisy, noisy_chart
from bench.noisy import ALONE, SHARED, UNSHARED, NoisySettings, Side
from bench.work import ROOT, Work


def test_messages_that_have_not_come_count_with_their_age() -> None:
    assert noisy._ages(3, rate=100, since=2.0) == pytest.approx([2000, 2010, 2020])


def test_the_share_s_p99_is_compared_with_that_of_a_cluster_without_the_large_customer() -> None:
    sides = {
        name: Side(waits=[[wait]], came=1, busy=[0.5], sorting=[1.0]) for name, wait in ((ALONE, 4.0), (SHARED, 6.0))
    }
    row = noisy._row(sides, SHARED, "p99")
    assert (row.ratio, row.is_met) == (1.5, True)
    assert noisy._row(sides, SHARED, "p50").demand is None


def test_the_picture_of_the_documents_is_up_to_date() -> None:
    result = json.loads((ROOT / "bench" / "results" / "0040-noisy.json").read_text(encoding="utf-8"))
    command = "run python -m bench noisy --draw bench/results/0040-noisy.json"
    assert (ROOT / noisy_chart.PICTURE).read_text(encoding="utf-8") == noisy_chart.svg(result), command


def test_the_picture_shows_each_side_and_its_p99() -> None:
    waits = {
        name: noisy_chart.described([[wait, 2 * wait]]) for name, wait in ((ALONE, 0.5), (SHARED, 0.6), (UNSHARED, 4e3))
    }
    result = {"settings": {"rate": 100, "times": 100, "waiting": 3_000_000}, "waits": waits}
    svg = noisy_chart.svg(result)
    assert [float(p99) for p99 in re.findall(r"([\d.]+) m?s \(p99\)", svg)] == [1, 1.2, 8]
    assert svg.count("<polyline") == 3


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.99, 4), (1.0, 4)])
def test_a_quantile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert noisy_chart.quantile([1, 2, 3, 4], share) == value


@pytest.mark.slow
def test_all_messages_of_others_come_where_groups_share(tmp_path: Path) -> None:
    settings = NoisySettings(seconds=0.5, waiting=5_000)
    side = Side()
    with Work.open(tmp_path) as work:
        noisy._measure(side, SHARED, settings, work)
    assert len(side.waits[0]) == side.came > 0
    assert side.sorting
