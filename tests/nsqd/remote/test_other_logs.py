"""Which topics were deleted and created again while the store was away."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqd.log.files import Files
from nsqd.remote.local_files import LocalFiles
from nsqd.remote.other_logs import find_older_logs, find_other_logs
from tests.nsqd.remote.machines import Machine

FOLDER = "topics/t.orders"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with two topics, of which the store knows."""
    first = Machine(tmp_path / "a")
    first.start()
    first.create_topic("orders", "log-1")
    first.create_topic("others", "log-2")
    first.send()
    return first


def others(machine: Machine) -> set[str]:
    machine.die()
    machine.start()
    return find_other_logs(machine.claimed.catalog, LocalFiles(machine.folder, Files()))


def older(machine: Machine) -> set[str]:
    return find_older_logs(machine.claimed.catalog, LocalFiles(machine.folder, Files()), {FOLDER})


def test_the_same_log_is_no_other_one(machine: Machine) -> None:
    assert others(machine) == set()


def test_a_topic_that_was_created_again_has_another_log(machine: Machine) -> None:
    machine.delete_topic("orders")
    machine.create_topic("orders", "log-3")
    assert others(machine) == {FOLDER}


def test_a_topic_that_was_deleted_has_none(machine: Machine) -> None:
    machine.delete_topic("orders")
    assert others(machine) == set()


def test_a_damaged_log_json_says_nothing(machine: Machine) -> None:
    (machine.folder / FOLDER / "log.json").write_bytes(bytes(50))
    assert others(machine) == set()


@pytest.mark.parametrize("is_rooted", [False, True])
def test_of_two_logs_the_older_one_is_that_which_the_store_had_before(machine: Machine, is_rooted: bool) -> None:
    if is_rooted:
        machine.send_difference()
        machine.make_root()
    first = (machine.folder / FOLDER / "log.json").read_bytes()
    machine.delete_topic("orders")
    machine.create_topic("orders", "log-3")
    machine.send()
    machine.delete_topic("orders")
    machine.create_topic("orders", "log-4")
    assert others(machine) == {FOLDER}
    assert older(machine) == set(), "the store has never had this one"
    (machine.folder / FOLDER / "log.json").write_bytes(first)
    assert older(machine) == {FOLDER}
