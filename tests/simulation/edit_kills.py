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
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import fin, mpub, rdy, req
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.message import Message
from tests.simulation.edit_ledger import EditLedger, Pending
from tests.simulation.killing import KillRun, Ledger, Load, check_nothing_comes_back, consumer, drain, unread
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer

DELAYS: Final = (0, 0, 30, 2_000)  # milliseconds; the longest is still under way after a restart
_NEVER: Final = 600_000  # milliseconds: nothing times out, so what a consumer has can't be edited
_AHEAD: Final = 200  # messages that publishers are ahead of `work`


class EditKills(KillRun):
    channels = ("work", "other", "quiet")
    early = range(1, 6)  # answered edits
    late = range(6, 24)

    def __init__(self) -> None:
        super().__init__()
        self.work = EditLedger()
        self.other: Counter[int] = Counter()  # number -> deliveries in `other`
        self.numbers = itertools.count(1)

    def __str__(self) -> str:
        counts = self.work.counts
        what = ("deliveries", "copies", "replaced", "run again", "refused", "answered at the second time")
        done = ", ".join(f"{counts[it]:,} {it}" for it in what)
        return f"{self.kills} kills: {self.work.bounds[0]:,} messages acknowledged, {done}; 0 violations, 0 lost"

    def options(self, folder: Path) -> Sequence[str]:
        return ("max-msg-timeout=1h",)

    def ledgers(self) -> Sequence[Ledger]:
        return (self.work,)

    def load(self, nsqd: Nsqd, chance: random.Random) -> Load:
        return _Load(nsqd, self, chance)

    def check_start(self, nsqd: Nsqd, chance: random.Random) -> None:
        _check_quiet(nsqd, self)
        for edit in self.work.open_edits()[:: chance.choice((1, 2))]:  # the others while consumers are busy
            _send_again(nsqd, self.work, edit)

    def check_end(self, nsqd: Nsqd) -> None:
        _check_the_end(nsqd, self)


class _Load(Load):
    def __init__(self, nsqd: Nsqd, run: EditKills, chance: random.Random) -> None:
        self._nsqd = nsqd
        self._run = run
        tasks = (self._publish, self._fail, self._fail, self._finish, self._edit, self._edit, self._operate)
        # An edit seldom runs a finished message again, as few may. No kill comes before one has.
        super().__init__(
            tasks, chance, lambda: run.work.counts["replaced"], lambda _: bool(run.work.counts["run again"])
        )

    def _publish(self, chance: random.Random) -> None:
        run = self._run
        with Consumer(self._nsqd.tcp) as client:
            while not self.stopping.is_set():
                if run.work.bounds[0] > run.work.counts["deliveries"] + _AHEAD:
                    self.stopping.wait(0.01)
                    continue
                numbers = [next(run.numbers) for _ in range(chance.randint(1, 10))]
                run.work.sending(numbers)
                assert client.ask(mpub("t", [_body(number, 0, chance) for number in numbers])) == b"OK"
                run.work.acknowledged(numbers)
                self.stopping.wait(chance.uniform(0, 0.02))

    def _finish(self, chance: random.Random) -> None:
        with _consumer(self._nsqd, "other") as client:
            while not self.stopping.is_set():
                _finish_next(client, self._run.other, chance.uniform(0, 0.05))

    def _fail(self, chance: random.Random) -> None:
        """Consume for a while, and then leave without anything unread."""
        ledger, finished = self._run.work, list[tuple[int, int]]()
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
            for left in unread(client):
                finished += _answer(client, ledger, left, chance)
            client.in_step()
        ledger.are_finished(finished)

    # Editors and operators

    def _edit(self, chance: random.Random) -> None:
        """Edit one of the newest messages, wherever it is, or send an edit again that has had no answer."""
        ledger = self._run.work
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
    return consumer(nsqd, channel, ready=ready, msg_timeout=_NEVER)


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


def _finish_next(client: Consumer, got: Counter[int], timeout: float) -> None:
    with suppress(TimeoutError):
        _finish(client, got, client.message(timeout))


def _finish(client: Consumer, got: Counter[int], message: Message) -> None:
    number, version = _names(message)
    if version:
        raise Violation(f"version {version} of message {number} came to a channel in which nobody has edited it")
    got[number] += 1
    client.send(fin(message.id))


def _check_quiet(nsqd: Nsqd, run: EditKills) -> None:
    """Check that the channel without consumers has what was published, and nothing more."""
    depth, (least, most) = nsqd.channel("t", "quiet")["depth"], run.work.bounds
    if not least <= depth <= most:
        raise Violation(f"the quiet channel has {depth} messages, and {least} to {most} were published")


# The end


def _check_the_end(nsqd: Nsqd, run: EditKills) -> None:
    work = run.work
    for edit in work.open_edits():
        _send_again(nsqd, work, edit)
    _check_quiet(nsqd, run)
    nsqd.post("/channel/kick?topic=t&channel=work")
    finished: list[tuple[int, int]] = []
    with _consumer(nsqd, "work") as client:

        def finish(message: Message) -> None:
            work.arrived(*_names(message), message.id.decode())
            work.finishing(*_names(message))
            client.send(fin(message.id))
            finished.append(_names(message))

        drain(nsqd, "work", client, finish)
    work.are_finished(finished)
    if left := work.left():
        raise Violation(f"work: {len(left)} messages are lost: {left[:20]}")
    quiet: Counter[int] = Counter()
    for name, got in (("other", run.other), ("quiet", quiet)):
        with _consumer(nsqd, name) as client:
            drain(nsqd, name, client, partial(_finish, client, got))
        if lost := [number for number, it in work.known.items() if it.is_acknowledged and not got[number]]:
            raise Violation(f"{name}: {len(lost)} messages are lost: {lost[:20]}")
    if twice := [number for number, count in quiet.items() if count > 1]:
        raise Violation(f"quiet: messages came twice: {twice[:20]}")
    check_nothing_comes_back(nsqd, run.channels)
