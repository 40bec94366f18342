"""Fixtures of tests of Spark: an nsqd that keeps its messages, topics on it, and no JVM but the one that tests share.

A folder whose tests use them imports them in its conftest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.process import Nsqd, SteadyNsqd
from tests.support.spark import KEPT, numbered, publish

if TYPE_CHECKING:
    from tests.support.orders import Orders


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with SteadyNsqd(tmp_path / "data", KEPT) as process:
        yield process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("node") / "data", KEPT) as process:
        yield process


@pytest.fixture
def orders(node: Nsqd, request: pytest.FixtureRequest) -> Orders:
    """Return a topic of its own for each test."""
    from tests.support.orders import Orders  # later: it needs packages that may be missing

    topic = request.node.name.partition("[")[0][-60:]
    publish(node, topic, numbered(100))
    return Orders(node, topic)


@pytest.fixture(autouse=True)
def no_other_jvm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide Java from a test that starts a JVM and has no mark `own_jvm` to say why the shared one will not do."""
    if request.node.get_closest_marker("own_jvm") is None:
        monkeypatch.setenv("JAVA_HOME", "/a test that starts a JVM has the mark own_jvm")
