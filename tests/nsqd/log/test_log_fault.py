"""A log that fails: when it is tried again, and when it works again."""

from __future__ import annotations

from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import DiskError
from nsqd.log.log_fault import RETRY_AFTER, LogFault
from nsqd.log.reading.refusals import READ_PATIENCE
from nsqd.log.wakeups import Wakeups
from tests.nsqd.log.harness import fault_of

NO_SPACE = DiskError("no space", is_full=True)
REFUSED = DiskError("refused")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def fault_at(clock: Clock) -> LogFault:
    return fault_of(Faults(Wakeups()), clock)


def test_a_sound_log_needs_no_proof() -> None:
    fault = fault_at(Clock())
    assert (fault.error, fault.needs_check) == (None, False)


def test_each_failure_puts_the_next_try_off() -> None:
    clock = Clock()
    fault = fault_at(clock)
    for _ in range(3):
        fault.begin(NO_SPACE)
        assert fault.needs_check
        clock.now += RETRY_AFTER / 2
        assert not fault.is_due
        clock.now += RETRY_AFTER / 2
        assert fault.is_due


def test_a_log_that_is_proven_stays_broken_until_something_is_written() -> None:
    fault = fault_at(Clock())
    fault.begin(NO_SPACE)
    fault.proven()
    assert (fault.error, fault.needs_check) == (NO_SPACE, False)
    fault.end()
    assert fault.error is None


def test_patience_counts_from_the_first_failure() -> None:
    clock = Clock()
    fault = fault_at(clock)
    fault.begin(REFUSED)
    clock.now += READ_PATIENCE - 0.5
    fault.begin(REFUSED)
    assert not fault.is_lasting
    clock.now += 0.5
    assert fault.is_lasting
    fault.end()
    fault.begin(REFUSED)
    assert not fault.is_lasting


def test_it_is_among_the_faults_until_it_ends() -> None:
    faults = Faults(Wakeups())
    fault = fault_of(faults, Clock())
    fault.begin(NO_SPACE)
    fault.proven()
    assert FaultKind.LOG in faults
    fault.end()
    assert FaultKind.LOG not in faults
