"""A short version of `python -m tests.simulation jobs`: nothing is lost or early, and a kill repeats only what was in flight."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.jobs.setup import CONCURRENCY
from tests.simulation.jobs import scenario
from tests.simulation.jobs.scenario import WORKERS, Plan
from tests.support import forked
from tests.support.lengths import IS_LONG, sized
from tests.support.process import PYTHON, eventually

pytestmark = pytest.mark.slow

TASKS = sized(short=150, long=300)
COMES_BACK = sized(short="8s", long="1m")  # after this time nsqd gives the jobs of a killed worker to another one
HELD = 2 * CONCURRENCY  # jobs that a worker may have: as many run as it has fetched ahead


class Forked(forked.Popen[bytes]):
    """A process that is in a session of its own when it has begun. It ends with the zygote instead of with its parent."""

    def __init__(self, command: list[str], *, preexec_fn: object, **more: Any) -> None:
        super().__init__(command, **more)
        eventually(self._leads_its_session, 10)

    def _leads_its_session(self) -> bool:
        try:
            return os.getsid(self.pid) == self.pid
        except ProcessLookupError:  # it has ended
            return True


@pytest.mark.parametrize("library", ["celery", "taskiq"])
def test_jobs_with_an_eta_survive_kills_of_workers_and_nsqd(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQD_MSG_TIMEOUT", COMES_BACK)
    if not IS_LONG:  # most of what a start costs is imports
        monkeypatch.setattr("bench.servers.subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Forked}))
    plan = Plan(
        library=library,
        broker="nsq",
        tasks=TASKS,
        span=24 * TASKS,
        within=0.03 * TASKS,
        kills=TASKS // 50,
        broker_kills=TASKS // 150,
        seed=1,
    )
    outcome = scenario.run(tmp_path, plan, print, python=(PYTHON, "-P"))
    verdict = outcome.verdict
    assert (verdict.published, verdict.not_run, verdict.early) == (TASKS, 0, 0), outcome
    assert outcome.kills + outcome.broker_kills > 0, outcome
    most = HELD * (outcome.kills + outcome.deaths + WORKERS * outcome.broker_kills)
    assert verdict.repeated <= most, outcome
