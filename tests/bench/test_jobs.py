"""The ledger of jobs with an ETA, the copies of a message, the processes of a session, and the table side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from bench.jobs import rates
from bench.jobs.fill_copies import copies_of
from bench.jobs.setup import Setup
from bench.servers import Process, Server
from bench.sessions import members, processor_seconds
from bench.work import Failed
from tests.simulation.jobs import command
from tests.simulation.jobs.ledger import Published, judge, published, runs


def job(due: float, *, tries: int = 1) -> Published:
    return Published(due, due - 10, tries)


def test_a_job_that_never_ran_is_counted() -> None:
    assert judge({1: job(100), 2: job(100)}, {1: [100.5]}).not_run == 1


@pytest.mark.parametrize(("ran", "early"), [(99.9, 1), (99.9995, 0), (100.0, 0)])
def test_a_job_is_early_beyond_the_clocks_granularity(ran: float, early: int) -> None:
    assert judge({1: job(100)}, {1: [ran]}).early == early


def test_repeats_count_each_run_but_the_first() -> None:
    verdict = judge({1: job(100), 2: job(100)}, {1: [101, 102, 103], 2: [100]})
    assert (verdict.repeated, verdict.repeated_jobs, verdict.most_runs) == (2, 1, 3)


def test_lateness_counts_from_the_confirmation_of_a_publish_that_took_longer() -> None:
    verdict = judge({1: Published(due=100, confirmed=104, tries=3)}, {1: [105]})
    assert (verdict.late_most, verdict.republished) == (1, 1)


def test_a_line_that_is_not_complete_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "published").write_text("1 100.0 90.0 1\n2 100.0")
    (tmp_path / "ran-7").write_text("1 100.0 100.5\n1000000000 1.0 2.0\n")
    assert published(tmp_path) == {1: Published(100, 90, 1)}
    assert runs(tmp_path) == {1: [100.5]}


def test_copies_have_ids_and_delivery_tags_of_their_own() -> None:
    message = b'{"headers": {"id": "aa", "root_id": "aa"}, "properties": {"delivery_tag": "bb"}}'
    copy = copies_of(message)
    assert copy(1) == message.replace(b"aa", b"00000001-0000-4000-8000-000000000001").replace(
        b"bb", b"00000001-0000-4000-8000-000000000001"
    )
    assert copy(1) != copy(2)


def test_the_table_has_nsq_first() -> None:
    figures = dict.fromkeys(command.ROWS, 1)
    kept = [{"library": "celery", "broker": broker, "figures": figures} for broker in ("redis", "nsq")]
    assert command.table("celery", kept)[0].split() == ["celery", "nsq", "redis"]


def test_children_that_have_left_the_session_or_have_ended_count() -> None:
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.2: pass"])
child = subprocess.Popen([sys.executable, "-c", "__import__('sys').stdin.read()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        assert set(members(first.pid)) == {first.pid, child}
        assert processor_seconds(first.pid) > 0.15
        first.communicate(b"\n")  # the child ends with its input


class Idle(Server):
    program = "none"

    def left(self) -> int:
        return 0


def test_a_worker_that_was_done_at_the_first_look_has_no_rate(tmp_path: Path) -> None:
    setup = Setup("nsq", "nsq://127.0.0.1:1", str(tmp_path))
    stage = rates.Stage("celery", Idle(tmp_path), None, setup, tmp_path)
    with pytest.raises(Failed, match="all 300 jobs were done at the first look"):
        rates._work_off(stage, cast("Process", None), 300)
