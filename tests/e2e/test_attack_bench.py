"""Some hostile loads of `python -m bench attack`, two seconds each: honest requests are answered, memory is bounded.

How long the honest client waits is measured by the benchmark; a machine that runs tests is too busy for that.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import pytest

from bench.attack import MOST_MEMORY
from bench.attack.measure import Certificate, measured
from bench.attack.sockets import LIMIT
from bench.builds import Build
from bench.work import Work

pytestmark = pytest.mark.needs("C compiler", "openssl")

SECONDS = 2.0
BUILD = Build.COMPILED if "NSQ_TEST_PYTHON" in os.environ else Build.PURE


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    with Work.open(tmp_path_factory.mktemp("work")) as it:
        yield it


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("certificate"))


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "slow-headers",
        "half-mpub",
        "half-http",
        "identify-keys",
        "nops",
        "snappy-bomb",
        "deaf-consumers",
        "garbage-https",
        "lookupd-lines",
    ],
)
def test_an_honest_client_is_answered_beside_a_hostile_one(name: str, work: Work, certificate: Certificate) -> None:
    settings = argparse.Namespace(seconds=SECONDS, flag=[], build=BUILD)
    figures = measured(name, settings, work, certificate)
    assert figures.unanswered == 0, figures.told
    assert max(figures.p99, figures.handshakes) < LIMIT * 1000, figures.told
    assert figures.peak < MOST_MEMORY, figures.told
