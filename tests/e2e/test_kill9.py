"""kill -9 loses nothing that was promised. The long version: `python -m tests.e2e.kill9 --cycles 1000`."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsqcommon.wire.message import Message
from tests.e2e.kill9 import CYCLES, run
from tests.support.promises import BEAT, FLUSHED_AFTER, Channel, Excuses, Ledger, Violation


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("max-bytes-per-file=65536", "mem-queue-size=10"), ("ack=synced",)],
    ids=["defaults", "small-files", "synced"],
)
def test_kill_9_breaks_no_promise(tmp_path: Path, options: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    if not options:
        request.getfixturevalue("real_starts")  # as users do it; the others are forked
    ledger = run(tmp_path, cycles=CYCLES, seed=random.randrange(1 << 32), options=options)
    assert ledger.acknowledged > 50 * CYCLES


# Does the ledger notice?


def ledger_with(*sent: float) -> tuple[Ledger, Channel]:
    """Return a ledger with acknowledged messages of these delays, on a channel that existed before."""
    ledger, channel = Ledger(steady=("t",)), Channel("c", there_since=0.0, owed_since=0.0)
    topic = ledger.topics["t"]
    topic.channels["c"] = channel
    for delay in sent:
        ledger.answered_ok(topic, ledger.sending(1, delay))
    return ledger, channel


def lives_on(ledger: Ledger, *, beats: int = FLUSHED_AFTER) -> None:
    """Give nsqd so many signs of life, all of them now."""
    ledger.beats += [time.monotonic()] * beats


def delivery(number: int, attempts: int = 1) -> Message:
    return Message(0, attempts, b"0" * 16, b"%d " % number)


def test_the_ledger_knows_what_has_to_arrive() -> None:
    ledger, channel = ledger_with(0, 0)
    ledger.arrived(channel, delivery(0))
    assert channel.required == {1}


def test_the_ledger_notices_a_finished_message_that_comes_again() -> None:
    ledger, channel = ledger_with(0)
    ledger.finishing(channel, ledger.arrived(channel, delivery(0)))
    lives_on(ledger)
    ledger.ended(time.monotonic() + 1)
    with pytest.raises(Violation, match=r"finished 1\.0\d\d s before the end"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_forgives_a_finish_just_before_the_kill() -> None:
    ledger, channel = ledger_with(0)
    ledger.finishing(channel, ledger.arrived(channel, delivery(0)))
    lives_on(ledger)
    ledger.ended(time.monotonic())
    assert ledger.arrived(channel, delivery(0)) == 0


def test_the_ledger_forgives_a_finish_that_nsqd_may_not_have_had_time_for() -> None:
    ledger, channel = ledger_with(0)
    lives_on(ledger)
    ledger.finishing(channel, ledger.arrived(channel, delivery(0)))
    lives_on(ledger, beats=FLUSHED_AFTER - 1)
    ledger.ended(time.monotonic() + 60)  # on a busy machine
    assert ledger.arrived(channel, delivery(0)) == 0


def test_what_was_sent_just_after_the_last_sign_of_life_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("tests.support.promises.time", SimpleNamespace(monotonic=lambda: now))
    ledger, _ = ledger_with(0, 0)
    assert len(ledger.beats) == 1
    ledger.beats[0] -= 2 * BEAT
    ledger.answered_ok(ledger.topics["t"], ledger.sending(1))
    assert len(ledger.beats) == 2


def test_the_ledger_forgives_no_finish_that_was_answered() -> None:
    ledger, channel = ledger_with(0)
    number = ledger.arrived(channel, delivery(0))
    ledger.finishing(channel, number)
    ledger.finish_answered(channel, number)
    ledger.ended(time.monotonic())
    with pytest.raises(Violation, match="came again, though finished"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_notices_attempts_that_go_down() -> None:
    ledger, channel = ledger_with(0)
    ledger.arrived(channel, delivery(0, attempts=3))
    ledger.ended(time.monotonic())
    with pytest.raises(Violation, match="are 2 after 3"):
        ledger.arrived(channel, delivery(0, attempts=2))


def test_the_ledger_notices_what_comes_early() -> None:
    ledger, channel = ledger_with(60)
    with pytest.raises(Violation, match="deferred message 0 early"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_notices_a_requeue_that_comes_early() -> None:
    ledger, channel = ledger_with(0)
    ledger.requeueing(channel, ledger.arrived(channel, delivery(0)), 60).heeded_at = time.monotonic()
    ledger.ended(time.monotonic())
    with pytest.raises(Violation, match="requeued message 0 early"):
        ledger.arrived(channel, delivery(0, attempts=2))


def test_the_ledger_forgives_a_finish_that_a_sick_disk_could_not_keep() -> None:
    ledger, channel = ledger_with(0)
    ledger.falls_sick()
    ledger.finishing(channel, ledger.arrived(channel, delivery(0)))
    ledger.ended(time.monotonic() + 10)
    assert ledger.arrived(channel, delivery(0)) == 0


def test_the_ledger_forgives_a_requeue_that_met_a_disk_which_fell_sick_meanwhile() -> None:
    ledger, channel = ledger_with(0)
    requeue = ledger.requeueing(channel, ledger.arrived(channel, delivery(0)), 0)
    ledger.falls_sick()
    requeue.heeded_at = time.monotonic()
    ledger.ended(time.monotonic() + 10)
    assert ledger.arrived(channel, delivery(0)) == 0


def test_the_ledger_notices_attempts_that_a_requeue_should_have_kept() -> None:
    ledger, channel = ledger_with(0)
    requeue = ledger.requeueing(channel, ledger.arrived(channel, delivery(0)), 0)
    requeue.heeded_at = time.monotonic()
    ledger.ended(time.monotonic() + 10)
    with pytest.raises(Violation, match="attempts of message 0 are 1 after 1"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_forgives_attempts_that_were_read_while_nsqd_was_killed_on_a_sick_disk() -> None:
    ledger, channel = ledger_with(0)
    ledger.falls_sick()
    killed_at = time.monotonic()
    ledger.arrived(channel, delivery(0, attempts=2))
    ledger.ended(killed_at)
    assert ledger.arrived(channel, delivery(0)) == 0


def test_the_ledger_notices_attempts_that_were_read_while_nsqd_was_killed_on_a_disk_that_is_well() -> None:
    ledger, channel = ledger_with(0)
    killed_at = time.monotonic()
    ledger.arrived(channel, delivery(0, attempts=2))
    ledger.ended(killed_at)
    with pytest.raises(Violation, match="attempts of message 0 are 1 after 2"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_forgives_nothing_once_the_disk_was_well_again() -> None:
    ledger, channel = ledger_with(0)
    ledger.falls_sick()
    ledger.finishing(channel, ledger.arrived(channel, delivery(0)))
    ledger.is_well()
    lives_on(ledger)
    ledger.ended(time.monotonic() + 10)
    with pytest.raises(Violation, match="came again"):
        ledger.arrived(channel, delivery(0))


def test_the_ledger_notices_a_refusal_by_a_disk_that_is_well() -> None:
    ledger, _ = ledger_with()
    ledger.falls_sick()
    ledger.is_well()
    with pytest.raises(Violation, match="the disk is well"):
        ledger.answered_refused(ledger.sending(1), "E_PUB_FAILED")


def test_the_ledger_excuses_what_a_power_cut_may_take_and_nothing_older() -> None:
    ledger, channel = ledger_with(0, 0)
    ledger.messages[0].answered_at -= 10
    ledger.ended(time.monotonic(), Excuses(finishes=1.0, changes=1.0, messages=1.0))
    assert channel.required == {0}
    assert channel.excused == {1}


def test_the_ledger_notices_what_comes_back_after_a_channel_was_emptied() -> None:
    ledger, channel = ledger_with(0)
    ledger.emptied(channel, ledger.emptying(ledger.topics["t"], channel))
    ledger.ended(time.monotonic())
    with pytest.raises(Violation, match="emptied of it"):
        ledger.arrived(channel, delivery(0))
