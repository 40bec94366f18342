"""The ledger of jobs with an ETA, the copies of a message, and the table side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.jobs.fill_copies import copies_of
from tests.faults.jobs import command
from tests.faults.jobs.ledger import Published, judge, published, runs


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
