"""What holds for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import Scheduling

from nsqpipe import shared_classes
from tests.support.distribution import FromBothEnds

pytest_plugins = ["pytester"]

# A slow machine is no failure. In CI the examples are the same each time, so that a red run is about the change;
# elsewhere they are new each time, which is where new failures are to be found.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=20)  # for scripts/test-quick
settings.load_profile("suite")

# A JVM of a test lives for seconds, which is too short for what its best compiler gains later. Half of the rest is classes.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
os.environ.update(shared_classes.environment())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return FromBothEnds(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What a test has logged may hold half a character; on its way from one process to another it is spelled out."""
    return _spelled_out((yield))


def _spelled_out(found: Any) -> Any:
    if isinstance(found, str):
        return found.encode("utf-8", "backslashreplace").decode()
    if isinstance(found, dict):
        return {_spelled_out(key): _spelled_out(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return type(found)(map(_spelled_out, found))
    return found
