"""`nsqpipe run` before Spark starts: what is wrong with its jobs, and what their checks import."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.spark.test_pipe_run import CLICKS, COUNTS, ORDERS, run, written
from tests.support.process import ROOT, Nsqd
from tests.support.spark import numbered, publish


def test_all_that_is_wrong_is_said_before_spark_starts(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was to be started")

    monkeypatch.setattr("nsqpipe.session.open_session", refuse)
    publish(nsqd, "orders", numbered(1))
    (tmp_path / "file").write_text("no folder")
    other = '[land.other]\ntopic = "orders"\ntable = "T/file/x"\n'
    began = time.monotonic()
    done = run(tmp_path, nsqd, ORDERS + CLICKS + other)
    assert time.monotonic() - began < 30
    assert done.exit_code == 1
    assert [line.partition(" at ")[0] for line in done.stderr.splitlines()] == [
        "nsqpipe: [land.clicks] there is no topic clicks",
        f"nsqpipe: [land.other] --table {tmp_path}/file/x: {tmp_path}/file is not a folder",
    ]
    fine = run(tmp_path, nsqd, ORDERS, "--dry-run")
    assert (fine.exit_code, fine.stdout) == (0, "can run: [land.orders]\n"), fine.stderr
    assert not (tmp_path / "orders").exists()


IMPORTED_BY_THREADS: Final = """
import atexit, sys
from nsqpipe import cli, pipeline

def watched(*arguments, before=pipeline.for_each):
    there = set(sys.modules)
    done = before(*arguments)
    late.update(it for it in set(sys.modules) - there if it.startswith(("nsqpipe", "pyspark_nsq")))
    return done

late, pipeline.for_each = set(), watched
atexit.register(lambda: print("late:", *sorted(late)))
cli.app(["run", *sys.argv[1:]])
"""


def test_jobs_that_are_checked_beside_each_other_import_nothing(nsqd: Nsqd, tmp_path: Path) -> None:
    """Otherwise one could find half a module, and the command would end with what looks like a broken installation."""
    publish(nsqd, "orders", numbered(1))
    publish(nsqd, "clicks", numbered(1))
    (tmp_path / "rules.toml").write_text('[[rule]]\ncheck = "n > 0"\n')
    file = written(tmp_path, nsqd, ORDERS + f'rules = "{tmp_path}/rules.toml"\n' + CLICKS + COUNTS)
    command = [sys.executable, "-c", IMPORTED_BY_THREADS, file, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "late:", done
