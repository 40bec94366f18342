"""deploy/demo/lose-a-machine with processes in place of containers: a machine is lost, and another one goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import join

import pytest

from tests.support.process import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="it runs the ordinary installation"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all loopback addresses"),
]

TIMEOUT = 240.0


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[str]:
    network = f"127.{os.getpid() % 200 + 20}.4"  # tests of several checkouts may run on this machine
    command = join(
        [sys.executable, str(ROOT / "tests/e2e/compose_of_processes.py"), str(tmp_path / "machines"), network]
    )
    yield command
    subprocess.run([*command.split(), "down"], check=True)


def test_no_acknowledged_message_is_lost_with_a_machine(compose: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "deploy" / "demo" / "lose-a-machine", "--rate=200", "--seconds=2"],
        env={**os.environ, "COMPOSE": compose, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "common")])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    logs = "\n".join(f"{it.name}:\n{it.read_text(encoding='utf-8')}" for it in tmp_path.glob("machines/*.log"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{logs}"
    *_, gone, new, count = done.stdout.splitlines()
    assert gone.endswith(".4.21:4151 is gone")
    assert re.search(r"\.4\.24:4150 took over after [\d.]+ s$", new), done.stdout
    found = re.fullmatch(r"of ([\d,]+) acknowledged messages 0 are missing, [\d,]+ came twice", count)
    assert found is not None, count
    assert int(found[1].replace(",", "")) >= 400
