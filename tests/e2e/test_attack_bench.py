"""Some hostile loads of `python -m bench attack`, a second or two each: honest requests are answered, memory is bounded.

How long the honest client waits is measured by the benchmark; a machine that runs tests is too busy for that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench import brokers
from bench.attack import MOST_MEMORY, measure
from bench.attack.measure import AttackSettings, measured
from bench.attack.sockets import LIMIT
from bench.builds import Build
from bench.certificate import Certificate
from bench.work import ROOT, Work
from tests.support import forked
from tests.support.process import PYTHONPATH

pytestmark = pytest.mark.needs("C compiler", "openssl")

SHORT = 1.0  # seconds, for a load that is as bad from its first moment
LONG = 2.0  # for one that has to pile up
BUILD = Build.COMPILED if "NSQ_TEST_PYTHON" in os.environ else Build.PURE


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    with Work.open(tmp_path_factory.mktemp("work")) as it:
        yield it


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the daemons, the attacker and the honest client, as other tests do."""

    @contextmanager
    def started(command: list[str], *, stdout: Any = None, stderr: Any = None, **_: Any) -> Iterator[Any]:
        environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"}
        with forked.Popen[bytes](
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    for module in (brokers, measure):
        monkeypatch.setattr(module, "started", started)
    monkeypatch.setattr(measure, "_AFTERWARDS", 0.3)  # seconds


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        pytest.param(name, seconds, id=name)
        for name, seconds in (
            ("nothing", SHORT),
            ("slow-headers", LONG),
            ("half-mpub", LONG),
            ("half-http", LONG),
            ("identify-keys", SHORT),
            ("nops", SHORT),
            ("snappy-bomb", SHORT),
            ("deaf-consumers", LONG),
            ("garbage-https", SHORT),
            ("lookupd-lines", SHORT),
        )
    ],
)
def test_an_honest_client_is_answered_beside_a_hostile_one(
    name: str, seconds: float, work: Work, certificate: Certificate
) -> None:
    settings = AttackSettings(seconds=seconds)
    settings.build = BUILD
    figures = measured(name, settings, work, certificate)
    assert figures.unanswered == 0, figures.told
    assert max(figures.p99, figures.handshakes) < LIMIT * 1000, figures.told
    assert figures.peak < MOST_MEMORY, figures.told
