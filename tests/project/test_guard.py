"""No change makes nsqd execute many more instructions: `python -m bench guard`, and a proof that it would notice."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path

import pytest

from bench import guard
from bench.builds import Build
from bench.guard import counting
from bench.guard.counting import Skipped
from bench.guard.figures import ONE_CHANGE

# The loads of the guard, with a little more to do in each PUB.
SLOWER = """
    import runpy

    from nsqd.client.publisher import ClientPublisher

    publish = ClientPublisher.publish

    def slower(self, command):
        for _ in range(20):
            pass
        publish(self, command)

    ClientPublisher.publish = slower
    runpy.run_path({loads!r}, run_name="__main__")
"""


@cache
def compared(build: Build) -> guard.Comparison:
    try:
        return guard.compare(build)
    except Skipped as skipped:
        pytest.skip(str(skipped))


@pytest.mark.parametrize("build", Build)
def test_no_load_costs_more_than_its_figures_allow(build: Build) -> None:
    comparison = compared(build)
    comparison.print()
    assert comparison.too_much == []


def test_the_guard_notices_a_loop_of_twenty_in_each_pub(tmp_path: Path) -> None:
    before = compared(Build.PURE).counts
    loads = tmp_path / "loads.py"
    loads.write_text(textwrap.dedent(SLOWER).format(loads=str(counting.LOADS)), encoding="utf-8")
    slower = counting.count(Build.PURE, loads=loads)
    more = {load: slower[load] / before[load] - 1 for load in before}
    assert more.pop("PUB") > ONE_CHANGE
    assert max(more.values()) < ONE_CHANGE
