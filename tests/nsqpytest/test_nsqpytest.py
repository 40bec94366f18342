"""The pytest plugin: a broker for a test, and nothing for all the runs of pytest that do not ask for one."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import nsqclient.sync
import nsqpytest
from nsqpytest import Broker, running_broker

COLLECT: Final = """
import sys, pytest
status = pytest.main(["--collect-only", "-p", "nsq", "-p", "no:cacheprovider"])
print("status", int(status))
print("loaded", *sorted(sys.modules))
"""


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Freeze again what tests/conftest.py has frozen, because a broker thaws everything when it ends."""
    yield
    gc.freeze()


def test_a_broker_for_a_test(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with nsqclient.sync.producer(broker.tcp_address) as producer:
            producer.publish("orders", b"one")
        with nsqclient.sync.consumer("orders", "c", nsqd=broker.tcp_address) as consumer:
            message = next(consumer.messages(idle_timeout=10))
            assert message.body == b"one"
            message.finish()
        assert isinstance(broker, Broker)
    assert not [it for it in threading.enumerate() if it.name == "nsq_broker"]


def test_the_plugin_gives_it_to_whoever_asks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import nsqclient.sync

        def test_it(nsq_broker):
            with nsqclient.sync.producer(nsq_broker.tcp_address) as producer:
                producer.publish("t", b"one")
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_run_that_does_not_ask_loads_nothing_else_of_ours(tmp_path: Path) -> None:
    # Plugins of other projects, such as anyio's, may load trio: of those that are installed here, only ours is.
    environ = {**os.environ, "PYTHONPATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", COLLECT],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    status, loaded = (line.split()[1:] for line in done.stdout.splitlines()[-2:])
    assert status == [str(int(pytest.ExitCode.NO_TESTS_COLLECTED))]
    assert [it for it in loaded if it.startswith(("nsq", "pyspark_nsq"))] == ["nsqpytest"]
    assert "trio" not in loaded


def test_the_former_name_still_works_and_says_how_long() -> None:
    sys.modules.pop("nsqclient.pytest_plugin", None)
    with pytest.warns(DeprecationWarning, match=r"is now nsqpytest; the old name will be removed in 0\.3\.0"):
        former = importlib.import_module("nsqclient.pytest_plugin")
    assert [getattr(former, name) for name in former.__all__] == [getattr(nsqpytest, it) for it in nsqpytest.__all__]
