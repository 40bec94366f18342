"""The current faults, and the node's health that follows from them."""

from __future__ import annotations

import logging

import pytest

from nsqd.log.faults import FaultKind, Faults, StorageFault
from nsqd.log.files import DiskError
from nsqd.log.wakeups import Wakeups

NO_SPACE = DiskError("write a: no space left on device", is_full=True)
REFUSED = DiskError("write a: input/output error")


class Node:
    """The faults, and what the task hears that tells nsqlookupd of them."""

    def __init__(self) -> None:
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups)
        self._made: dict[str, StorageFault] = {}

    def fault(self, kind: FaultKind = FaultKind.LOG, name: str = "") -> StorageFault:
        """Return the fault of this kind, and for logs of this name."""
        return self._made.setdefault(kind.name + name, StorageFault(self.faults, kind))

    def is_told(self) -> bool:
        """Return whether the task was woken since the last call."""
        told = self.wakeups.health.is_set
        self.wakeups.health.clear()
        return told


def test_the_first_fault_that_is_left_is_the_node_s_health() -> None:
    node = Node()
    log, ids = node.fault(), node.fault(FaultKind.IDS)
    assert (node.faults.health, len(node.faults)) == ("OK", 0)
    log.begin(DiskError("write a: no space left"))
    ids.begin(DiskError("write node.json: no space left"))
    assert node.faults.health == "NOK - write a: no space left"
    log.end()
    assert node.faults.health == "NOK - write node.json: no space left"
    ids.end()
    assert node.faults.health == "OK"


def test_a_fault_that_begins_again_keeps_its_place() -> None:
    node = Node()
    first, second = node.fault(name="a"), node.fault(name="b")
    first.begin(REFUSED)
    second.begin(DiskError("write b: input/output error"))
    first.begin(DiskError("fsync a: input/output error"))
    assert node.faults.health == "NOK - fsync a: input/output error"
    assert node.faults.texts() == ["fsync a: input/output error", "write b: input/output error"]


def test_a_lost_data_path_explains_all_the_others() -> None:
    node = Node()
    node.fault().begin(DiskError("fsync a: no such file"))
    node.fault(FaultKind.PLACE).begin(DiskError("the data path is gone"))
    assert node.faults.health == "NOK - the data path is gone"


def test_a_fault_wakes_whoever_repairs_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node()
    fault = node.fault()
    fault.begin(DiskError("write a: failed"))
    assert node.wakeups.repair.is_set
    fault.begin(DiskError("write a: failed again"))
    fault.end()
    fault.end()
    assert [record.getMessage() for record in caplog.records] == [
        "storage fault error=write a: failed",
        "storage fault cleared error=write a: failed again",
    ]


def test_one_may_be_repaired_while_they_are_gone_through() -> None:
    node = Node()
    for name in ("a", "b", "c"):
        node.fault(name=name).begin(DiskError(f"{name} fails"))
    for fault in node.faults:
        fault.end()
    assert (len(node.faults), node.faults.texts(), FaultKind.LOG in node.faults) == (0, [], False)


@pytest.mark.parametrize(("faults_there", "state"), [
    ({}, ""),
    ({FaultKind.RESERVE: DiskError("too little is left", is_full=True)}, "full"),
    ({FaultKind.LOG: NO_SPACE}, "full"),
    ({FaultKind.LOG: NO_SPACE, FaultKind.IDS: REFUSED}, "full"),
    ({FaultKind.LOG: REFUSED}, "unhealthy"),
    ({FaultKind.RESERVE: NO_SPACE, FaultKind.PLACE: DiskError("the data path is gone")}, "unhealthy"),
])  # fmt: skip
def test_the_state_says_why_messages_are_refused(faults_there: dict[FaultKind, DiskError], state: str) -> None:
    node = Node()
    for kind, error in faults_there.items():
        node.fault(kind).begin(error)
    assert node.faults.state == state


def test_a_change_of_the_state_alone_is_told() -> None:
    """The health names the first fault only, but the state depends on all of them."""
    node = Node()
    reserve = node.fault(FaultKind.RESERVE)
    node.fault().begin(REFUSED)
    assert (node.is_told(), node.faults.state) == (True, "unhealthy")
    reserve.begin(NO_SPACE)
    assert (node.is_told(), node.faults.state) == (True, "full")
    reserve.end()
    assert (node.is_told(), node.faults.state) == (True, "unhealthy")


def test_each_change_of_the_health_is_told() -> None:
    node = Node()
    first, second = node.fault(name="a"), node.fault(name="b")
    told = []
    for fault in (first, first, second):
        fault.begin(REFUSED)
        told.append(node.is_told())
    for fault in (second, first):
        fault.end()
        told.append(node.is_told())
    assert told == [True, False, False, False, True]
    assert node.faults.health == "OK"
