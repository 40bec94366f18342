"""Our wheels, and an installation of them, for all tests of a run that need them (`tests/support/distribution.py`)."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.installed import Installed, build_pure, install
from tests.support.process import ROOT

VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
SHIPPED: Final = os.environ.get("NSQ_TEST_WHEELS")  # a folder, which may have wheels of earlier releases, too


@dataclass(frozen=True, slots=True)
class Wheels:
    client: Path
    suite: Path


@pytest.fixture(scope="session")
def built_wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return Wheels(*build_pure(tmp_path_factory.mktemp("built")))


@pytest.fixture(scope="session")
def pure_wheels(request: pytest.FixtureRequest) -> Wheels:
    if SHIPPED is not None:
        return Wheels(*(ROOT / SHIPPED / f"{name}-{VERSION}-py3-none-any.whl" for name in ("nsqclient", "nsq_suite")))
    wheels: Wheels = request.getfixturevalue("built_wheels")
    return wheels


@pytest.fixture(scope="session")
def pure(pure_wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install([pure_wheels.client, pure_wheels.suite], tmp_path_factory.mktemp("pure") / "installed")
