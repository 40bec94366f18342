"""The command that forks Spark's Python workers for tests: it behaves as `python` would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.spark_workers import workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no pidfd")


@pytest.fixture(scope="module")
def command() -> Iterator[str]:
    with workers() as command:
        yield command


def test_a_module_runs_with_its_streams_arguments_and_status(command: str) -> None:
    words = [command, "-m", "json.tool", "--compact"]
    done = subprocess.run(words, input='{"a": \n 1}', capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ('{"a":1}\n', "", 0)
    wrong = subprocess.run(words, input="{", capture_output=True, text=True, timeout=120, check=False)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "Expecting property name" in wrong.stderr


def test_a_module_has_the_environment_and_finds_what_spark_uses(command: str) -> None:
    code = "import os, sys; print('pyspark.worker_util' in sys.modules, os.environ['GIVEN'], os.getcwd())"
    environ = {**os.environ, "GIVEN": "this"}
    done = subprocess.run(
        [command, "-m", "code", "-q"], input=code, env=environ, cwd="/", capture_output=True, text=True, timeout=120
    )
    assert "True this /\n" in done.stdout, done


def test_what_is_no_module_is_started(command: str) -> None:
    done = subprocess.run([command, "-c", "print(7)"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "7\n"


def test_who_kills_the_command_kills_the_worker(command: str) -> None:
    with subprocess.Popen(
        [command, "-m", "code", "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(b"import os; print(os.getpid(), flush=True)\n")
        started.stdin.flush()
        assert started.stdout.readline().rpartition(b" ")[2] != b"%d\n" % started.pid, "another process runs it"
        started.send_signal(signal.SIGTERM)
        assert started.stdout.read().strip(b"> ") == b"", "it ends, and its streams with it"
