"""kill -9 of a real nsqd while messages are edited and run: exactly one of the two in this channel, nothing in any other.

Topic t has three channels. In `work`, consumers fail in all ways, and editors replace messages wherever these are; an
edit whose answer a kill has swallowed is sent again. The consumers of `other` finish everything, and `quiet` has none
until the end, so its depth shows whatever it gets.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import fin, mpub, rdy, req
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.message import Message
from tests.simulation.edit_ledger import EditLedger, Pending
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer, Tasks

EARLY: Final = range(1, 6)  # answered edits before a kill
LATE: Final = range(6, 24)
DELAYS: Final = (0, 0, 30, 2_000)  # milliseconds; the longest is still under way after a restart
_SHORT_SEGMENTS: Final = "max-bytes-per-file=65536"  # so that buried messages and copies are compacted
_NEVER: Final = 600_000  # milliseconds: nothing times out, so what a consumer has can't be edited
_AHEAD: Final = 200  # messages that publishers are ahead of `work`
_BUSY_TIMEOUT: Final = 120.0


class Outcome:
    def __init__(self) -> None:
        self.work = EditLedger()
        self.other: Counter[int] = Counter()  # number -> deliveries in `other`
        self.kills = 0
        self.numbers = itertools.count(1)

    def __str__(self) -> str:
        counts = self.work.counts
        what = ("deliveries", "copies", "replaced", "run again", "refused", "answered at the second time")
        done = ", ".join(f"{counts[it]:,} {it}" for it in what)
        return f"{self.kills} kills: {self.work.bounds[0]:,} messages acknowledged, {done}; 0 violations, 0 lost"


def run(
    folder: Path,
    outcome: Outcome,
    *,
    kills: int,
    seed: int,
    environ: Mapping[str, str] | None = None,
    after_kill: Callable[[], None] = lambda: None,
) -> None:
    """Kill nsqd so often. Raise AssertionError, with the seed and the log, if something is wrong."""
    chance = random.Random(seed)
    with Nsqd(folder / "data", _SHORT_SEGMENTS, "max-msg-timeout=1h", environ=environ) as nsqd:
        try:
            nsqd.post("/topic/create?topic=t")
            for name in ("work", "other", "quiet"):
                nsqd.post(f"/channel/create?topic=t&channel={name}")
            for number in range(kills):
                load = _Load(nsqd, outcome, chance)
                load.go_on_for(chance.choice(EARLY if number % 3 == 2 else LATE))
                killed_at = time.monotonic()
                nsqd.kill()
                load.ended()
                outcome.work.ended(killed_at)
                outcome.kills += 1
                nsqd.start()
                _check_quiet(nsqd, outcome)
                for edit in outcome.work.open_edits()[:: chance.choice((1, 2))]:  # the others while consumers are busy
                    _send_again(nsqd, outcome.work, edit)
                after_kill()
            _check_the_end(nsqd, outcome)
        except Exception as error:
            log = "\n".join(nsqd.log.splitlines()[-60:])
            raise AssertionError(f"{log}\n\nkill {outcome.kills}, seed {seed}: {error!r}") from error


class _Load:
    """Threads that go on until their connections break."""

    def __init__(self, nsqd: Nsqd, outcome: Outcome, chance: random.Random) -> None:
        self._nsqd = nsqd
        self._outcome = outcome
        tasks = (self._publish, self._fail, self._fail, self._finish, self._edit, self._edit, self._operate)
        self._tasks = Tasks(tasks, chance)
        self.stopping = self._tasks.stopping
        self._tasks.start()

    def go_on_for(self, edits: int) -> None:
        """Let it go on until so many edits were answered, or something is wrong, which `ended` raises."""
        counts, deadline = self._outcome.work.counts, time.monotonic() + _BUSY_TIMEOUT
        goal = counts["replaced"] + edits
        while not self._tasks.violations and counts["replaced"] < goal:
            assert time.monotonic() < deadline, "the load has come to a standstill"
            self.stopping.wait(0.001)

    def ended(self) -> None:
        self._tasks.ended()

    def _publish(self, chance: random.Random) -> None:
        outcome = self._outcome
        with Consumer(self._nsqd.tcp) as client:
            while not self.stopping.is_set():
                if outcome.work.bounds[0] > outcome.work.counts["deliveries"] + _AHEAD:
                    self.stopping.wait(0.01)
                    continue
                numbers = [next(outcome.numbers) for _ in range(chance.randint(1, 10))]
                outcome.work.sending(numbers)
                assert client.ask(mpub("t", [_body(number, 0, chance) for number in numbers])) == b"OK"
                outcome.work.acknowledged(numbers)
                self.stopping.wait(chance.uniform(0, 0.02))

    def _finish(self, chance: random.Random) -> None:
        with _consumer(self._nsqd, "other") as client:
            while not self.stopping.is_set():
                _finish_next(client, self._outcome.other, chance.uniform(0, 0.05))

    def _fail(self, chance: random.Random) -> None:
        """Consume for a while, and then leave without anything unread."""
        ledger, finished = self._outcome.work, list[tuple[int, int]]()
        with _consumer(self._nsqd, "work", chance.choice((1, 5, 20))) as client:
            until = time.monotonic() + chance.uniform(0.02, 0.2)
            while time.monotonic() < until:
                try:
                    message = client.message(0.02)
                except TimeoutError:
                    continue
                finished += _answer(client, ledger, message, chance)
            client.send(rdy(0))
            client.in_step()
            while (left := client.kept_message()) is not None:
                finished += _answer(client, ledger, left, chance)
            client.in_step()
        ledger.are_finished(finished)

    # Editors and operators

    def _edit(self, chance: random.Random) -> None:
        """Edit one of the newest messages, wherever it is, or send an edit again that has had no answer."""
        ledger = self._outcome.work
        if chance.random() < 0.3 and (open_edits := ledger.open_edits()):
            _send_again(self._nsqd, ledger, chance.choice(open_edits))
            return
        newest = ledger.bounds[0]
        number = chance.randint(max(1, newest - 300), max(1, newest))
        target = ledger.target(number) if number in ledger.known else ""
        if not target:
            self.stopping.wait(0.0005)
            return
        edit = ledger.edit(number, target=target, is_again=chance.random() < 0.1)
        if edit is not None:
            _send(self._nsqd, ledger, edit)

    def _operate(self, chance: random.Random) -> None:
        self.stopping.wait(chance.uniform(0.05, 0.3))
        answer = self._nsqd.http("POST", "/channel/kick?topic=t&channel=work&limit=20")
        assert answer.status in {200, 409}, answer  # a job is under way


def _body(number: int, version: int, chance: random.Random | None = None) -> bytes:
    return b"%d %d %b" % (number, version, b"." * (chance.choice((0, 300)) if chance is not None else 0))


def _names(message: Message) -> tuple[int, int]:
    number, version, _ = message.body.split(b" ")
    return int(number), int(version)


def _send(nsqd: Nsqd, ledger: EditLedger, edit: Pending) -> None:
    query = f"topic=t&channel=work&{edit.target}&token={edit.token}&again={str(edit.is_again).lower()}"
    answer = nsqd.http("POST", f"/channel/edit?{query}", _body(edit.number, edit.version))
    if answer.status == 200:
        it = answer.json
        ledger.answered(edit, message_id=it["id"], is_instead=it["replaced"], is_repeat=it["repeated"])
    else:
        assert answer.status == 409, answer
        assert answer.json["message"] == "CANNOT_EDIT", answer
        ledger.refused(edit)


def _send_again(nsqd: Nsqd, ledger: EditLedger, edit: Pending) -> None:
    if ledger.resend(edit):
        _send(nsqd, ledger, edit)


def _consumer(nsqd: Nsqd, channel: str, ready: int = 100) -> Consumer:
    client = Consumer(nsqd.tcp)
    try:
        client.identify(feature_negotiation=True, extensions=["bury"], msg_timeout=_NEVER)
        client.subscribe("t", channel, ready=ready)
    except BaseException:
        client.close()
        raise
    return client


def _answer(client: Consumer, ledger: EditLedger, message: Message, chance: random.Random) -> list[tuple[int, int]]:
    """Answer in a random way. Return what was finished."""
    names, luck = _names(message), chance.random()
    ledger.arrived(*names, message.id.decode())
    if luck < 0.3:
        ledger.finishing(*names)
        client.send(fin(message.id))
        return [names]
    if luck < 0.7:
        client.send(bury(message.id, "bad"))
    else:
        client.send(req(message.id, chance.choice(DELAYS)))
    return []


def _finish_next(client: Consumer, got: Counter[int], timeout: float) -> bool:
    try:
        message = client.message(timeout)
    except TimeoutError:
        return False
    number, version = _names(message)
    if version:
        raise Violation(f"version {version} of message {number} came to a channel in which nobody has edited it")
    got[number] += 1
    client.send(fin(message.id))
    return True


def _check_quiet(nsqd: Nsqd, outcome: Outcome) -> None:
    """Check that the channel without consumers has what was published, and nothing more."""
    depth, (least, most) = nsqd.channel("t", "quiet")["depth"], outcome.work.bounds
    if not least <= depth <= most:
        raise Violation(f"the quiet channel has {depth} messages, and {least} to {most} were published")


# The end


def _check_the_end(nsqd: Nsqd, outcome: Outcome) -> None:
    work = outcome.work
    for edit in work.open_edits():
        _send_again(nsqd, work, edit)
    _check_quiet(nsqd, outcome)
    nsqd.post("/channel/kick?topic=t&channel=work")
    finished: list[tuple[int, int]] = []

    def finish_next(client: Consumer) -> bool:
        try:
            message = client.message(0.05)
        except TimeoutError:
            return False
        work.arrived(*_names(message), message.id.decode())
        work.finishing(*_names(message))
        client.send(fin(message.id))
        finished.append(_names(message))
        return True

    _drain(nsqd, "work", finish_next)
    work.are_finished(finished)
    if left := work.left():
        raise Violation(f"work: {len(left)} messages are lost: {left[:20]}")
    quiet: Counter[int] = Counter()
    for name, got in (("other", outcome.other), ("quiet", quiet)):
        _drain(nsqd, name, lambda client, got=got: _finish_next(client, got, 0.05))  # type: ignore[misc]
        if lost := [number for number, it in work.known.items() if it.is_acknowledged and not got[number]]:
            raise Violation(f"{name}: {len(lost)} messages are lost: {lost[:20]}")
    if twice := [number for number, count in quiet.items() if count > 1]:
        raise Violation(f"quiet: messages came twice: {twice[:20]}")
    nsqd.restart()
    for name in ("work", "other", "quiet"):
        if (shown := nsqd.channel("t", name))["depth"]:
            raise Violation(f"finished messages came back: {shown}")


def _drain(nsqd: Nsqd, name: str, finish_next: Callable[[Consumer], bool]) -> None:
    deadline = time.monotonic() + _BUSY_TIMEOUT
    with _consumer(nsqd, name) as client:
        while True:
            if finish_next(client):
                continue
            client.in_step()
            left = nsqd.channel("t", name)
            if not any(left[count] for count in ("depth", "in_flight_count", "deferred_count")):
                return
            if time.monotonic() > deadline:
                raise Violation(f"{name} does not run dry: {left}")
