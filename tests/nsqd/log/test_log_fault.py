"""A log that fails: when it is tried again, and when it works again."""

from __future__ import annotations

from nsqd.log.log_fault import RETRY_AFTER, LogFault
from nsqd.log.reading.refusals import READ_PATIENCE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_sound_log_needs_no_proof() -> None:
    fault = LogFault(Clock())
    assert (fault.error, fault.needs_proof) == (None, False)


def test_each_failure_puts_the_next_try_off() -> None:
    clock = Clock()
    fault = LogFault(clock)
    for _ in range(3):
        fault.begin("no space")
        assert fault.needs_proof
        clock.now += RETRY_AFTER / 2
        assert not fault.is_due
        clock.now += RETRY_AFTER / 2
        assert fault.is_due


def test_a_log_that_is_proven_stays_broken_until_something_is_written() -> None:
    fault = LogFault(Clock())
    fault.begin("no space")
    fault.proven()
    assert (fault.error, fault.needs_proof) == ("no space", False)
    fault.end()
    assert fault.error is None


def test_patience_counts_from_the_first_failure() -> None:
    clock = Clock()
    fault = LogFault(clock)
    fault.begin("refused")
    clock.now += READ_PATIENCE - 0.5
    fault.begin("refused again")
    assert not fault.is_lasting
    clock.now += 0.5
    assert fault.is_lasting
    fault.end()
    fault.begin("later")
    assert not fault.is_lasting
