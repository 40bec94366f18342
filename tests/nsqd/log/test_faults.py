"""The current faults, and the node's health that follows from them."""

from __future__ import annotations

import logging

import pytest

from nsqcommon.wakeup import Wakeup
from nsqd.log.faults import Faults, StorageFault


def test_the_first_fault_that_is_left_is_the_node_s_health() -> None:
    faults = Faults(Wakeup())
    assert (faults.health, len(faults)) == ("OK", 0)
    faults.broken("a log", "write a: no space left")
    faults.broken(StorageFault.IDS, "write node.json: no space left")
    assert faults.health == "NOK - write a: no space left"
    faults.repaired("a log")
    assert faults.health == "NOK - write node.json: no space left"
    faults.repaired(StorageFault.IDS)
    assert faults.health == "OK"


def test_a_lost_data_path_explains_all_the_others() -> None:
    faults = Faults(Wakeup())
    faults.broken("a log", "fsync a: no such file")
    faults.broken(StorageFault.PLACE, "the data path is gone")
    assert faults.health == "NOK - the data path is gone"


def test_a_fault_wakes_whoever_repairs_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wakeup = Wakeup()
    faults = Faults(wakeup)
    faults.broken("a log", "write a: failed")
    assert wakeup.is_set
    faults.broken("a log", "write a: failed again")
    faults.repaired("a log")
    faults.repaired("a log")
    assert [record.getMessage() for record in caplog.records] == [
        "a fault began error=write a: failed",
        "a fault has ended error=write a: failed again",
    ]


def test_one_may_be_repaired_while_they_are_gone_through() -> None:
    faults = Faults(Wakeup())
    for source in ("a", "b", "c"):
        faults.broken(source, f"{source} fails")
    for fault in faults:
        faults.repaired(fault)
    assert (len(faults), faults.texts(), faults.text_of("a"), "a" in faults) == (0, [], None, False)


@pytest.mark.parametrize(("faults_there", "state"), [
    ({}, ""),
    ({StorageFault.RESERVE: "too little is left"}, "full"),
    ({"a log": "write a: no space left on device"}, "full"),
    ({"a log": "write a: disk quota exceeded", StorageFault.IDS: "write b: input/output error"}, "full"),
    ({"a log": "write a: input/output error"}, "unhealthy"),
    ({StorageFault.RESERVE: "too little is left", StorageFault.PLACE: "the data path is gone"}, "unhealthy"),
])  # fmt: skip
def test_the_state_says_why_messages_are_refused(faults_there: dict[object, str], state: str) -> None:
    faults = Faults(Wakeup())
    for source, text in faults_there.items():
        faults.broken(source, text)
    assert faults.state == state


def test_a_change_of_the_state_alone_is_told() -> None:
    """The health names the first fault only, but the state depends on all of them."""
    told: list[str] = []
    faults = Faults(Wakeup())
    faults.on_change = lambda: told.append(faults.state)
    faults.broken("a log", "write a: input/output error")
    faults.broken(StorageFault.RESERVE, "too little is left")
    faults.repaired(StorageFault.RESERVE)
    assert told == ["unhealthy", "full", "unhealthy"]


def test_each_change_of_the_health_is_told() -> None:
    told: list[str] = []
    faults = Faults(Wakeup())
    faults.on_change = lambda: told.append(faults.health)
    for _ in range(2):
        faults.broken("a log", "write a: failed")
    faults.broken("another", "write b: failed")
    faults.repaired("another")
    faults.repaired("a log")
    assert told == ["NOK - write a: failed", "OK"]
