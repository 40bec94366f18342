"""Machines that own one node after the other, and the store between them.

A machine is a folder, with what nsqd has on its disk. Each nsqd that owns the node is started on one of them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.failover.ledger import Ledger, Violation
from tests.failover.load import read_history, subscribed
from tests.failover.stores import Store
from tests.support.process import Nsqd, run_to_end

NAME: Final = "node"
WAITING_TOPICS: Final = ("orders", "bills")
OTHER_TOPICS: Final = ("fast",)
CHANNELS: Final = ("a", "b")
KEEPS_ALL: Final = "retention-bytes=10GB"
# What differs from life to life: small files come and go, and then there is something to compact and to fetch.
VARIANTS: Final = (
    (KEEPS_ALL,),
    (KEEPS_ALL, "max-bytes-per-file=30000"),
    ("max-bytes-per-file=30000", "mem-queue-size=10"),
)
DRAIN_TIMEOUT: Final = 60.0
CATCH_UP_TIMEOUT: Final = 10.0
_MOST_BURIED: Final = 5000
_SKIPPED: Final = re.compile(r"damage is skipped topic=(\w+) file=\d+\.log offset=\d+ first=(\d+) end=(\d+)")
_LACKING: Final = re.compile(r"damage: .* topic=(\w+) file=\d+\.log offset=\d+ sequences=(\d+)-(\d+)")


class Machines:
    """The machines of one node. At the end of its block no nsqd of them runs any more."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        options: Sequence[str] = (),
        *,
        environ: Mapping[str, str] | None = None,
        standby_after: str = "",
    ) -> None:
        """Have machines of one node. With `standby_after` each waits with --standby, and takes over by itself."""
        self.store = store
        self.standby_after = standby_after
        self.waiting: Nsqd | None = None  # the standby
        self.started: list[Nsqd] = []
        self.ledger = Ledger(WAITING_TOPICS, OTHER_TOPICS, CHANNELS)
        self.keeps_all = KEEPS_ALL in options
        self.folder = folder
        self._options = options
        self._environ = environ or {}
        self.running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running.close()

    def start_with(self, *options: str) -> None:
        """Start each nsqd from now on with these options, too."""
        self._options = (*self._options, *options)

    # Owners

    def new_owner(self, *options: str, data_path: Path | None = None, environ: Mapping[str, str] | None = None) -> Nsqd:
        """Return an nsqd that isn't started yet, on a machine of its own unless you name a folder."""
        number = len(self.started)
        nsqd = Nsqd(
            data_path or self.folder / f"machine-{number}",
            *self.store.options(number),
            f"remote-name={NAME}",
            "remote-interval=2ms",
            "ack=remote",
            *self._standby_options,
            *(f"topic-ack={topic}=written" for topic in OTHER_TOPICS),
            *self._options,
            *options,
            environ={**self._environ, **(environ or {})},
        )
        self.started.append(nsqd)
        self.running.callback(nsqd.kill)
        return nsqd

    def first_owner(self, *options: str) -> Nsqd:
        """Start an owner, with topics and channels that the store has: they were made before a message that has an OK."""
        nsqd = self.new_owner("take-over", *options).start()
        self.set_up(nsqd)
        return nsqd

    def set_up(self, nsqd: Nsqd) -> None:
        for topic in self.ledger.topics:
            nsqd.post(f"/topic/create?topic={topic}")
            for channel in self.ledger.channels:
                nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        (number,) = self.ledger.sending(WAITING_TOPICS[0], 1)
        nsqd.post(f"/pub?topic={WAITING_TOPICS[0]}", b"%d " % number)
        self.ledger.answered([number], self.ledger.life)
        self.store.begin_storm()

    @property
    def _standby_options(self) -> tuple[str, ...]:
        if not self.standby_after:
            return ()
        return "standby", f"standby-after={self.standby_after}", "broadcast-address=127.0.0.1"

    def stand_by(self) -> None:
        """Have a standby on a machine of its own, if this is such a life and there is none."""
        if not self.standby_after or self.waiting is not None:
            return
        self.waiting = self.new_owner().start_waiting()
        self.check_waiting()

    def check_waiting(self) -> None:
        """Raise Violation if the standby isn't one any more."""
        if self.waiting is not None and (state := self.waiting.remote_state) != "standby":
            raise Violation(f"the standby is {state or 'gone'}")

    def take_over(self, *, data_path: Path | None = None) -> Nsqd:
        """Wait for the standby. Without one start another owner at once, as an operator does who knows that the last one has gone."""
        if self.waiting is not None:
            nsqd, self.waiting = self.waiting, None
            return nsqd.wait_until_serving()
        return self.new_owner("take-over", data_path=data_path).start()

    def number_of(self, nsqd: Nsqd) -> int:
        """Return the number of its machine, as the store counts them."""
        return self.started.index(nsqd)

    def lose(self, nsqd: Nsqd) -> float:
        """Lose a machine with its disk. Return when."""
        at = time.monotonic()
        nsqd.kill()
        shutil.rmtree(nsqd.data_path)
        return at

    @property
    def log(self) -> str:
        """The ends of the logs of the last owners."""
        return "\n\n".join(
            "\n".join([f"{it.data_path.name}:", *[line for line in it.log.splitlines() if "f" * 16 not in line][-30:]])
            for it in self.started[-3:]
        )

    # What they have to know

    def check_shape(self, nsqd: Nsqd) -> None:
        """Check, before anybody uses a new owner, that it has what has to be there."""
        found = {it["topic_name"]: {x["channel_name"] for x in it["channels"]} for it in nsqd.stats()["topics"]}
        expected = {topic: {*self.ledger.channels} for topic in self.ledger.topics}
        if found != expected:
            raise Violation(f"topics and channels are {found}, not {expected}")
        for topic in self.ledger.topics:
            for channel in self.ledger.channels:
                self.ledger.check_buried(channel, topic, _buried(nsqd, topic, channel))

    def check_end(self, nsqd: Nsqd) -> None:
        """Repeat what got no answer, consume all that is left, and compare with the ledger."""
        self._publish_the_rest(nsqd)
        self.check_shape(nsqd)
        for topic in self.ledger.topics:
            for channel in self.ledger.channels:
                self._drain(nsqd, topic, channel)
        self.ledger.check_all_finished()
        self.check_histories(nsqd)
        self._check_store(nsqd)

    def _check_store(self, nsqd: Nsqd) -> None:
        """Stop the owner, and have the store proved, and the data path that it would give another machine."""
        self.store.calm()
        if (status := nsqd.stop()) != 0:
            raise Violation(f"a clean stop has status {status}")
        url, *options = self.store.options(len(self.started))
        done = run_to_end(
            *("remote", "fsck", url.removeprefix("remote="), f"--name={NAME}", f"--to={self.folder / 'restored'}"),
            *(f"--{it}" for it in options),
        )
        bad = [line for line in done.stdout.splitlines() if line.startswith(("damage", "unreadable", "warning"))]
        is_forgiven = bool(bad) and all(map(self._is_reported, bad))
        if not is_forgiven and (done.returncode != 0 or bad):
            raise Violation(f"nsqd remote fsck has status {done.returncode}:\n{done.stdout}\n{done.stderr}")

    def note_what_power_has_taken(self, nsqd: Nsqd) -> None:
        """Note what this owner has reported at its start, after a power cut."""
        for topic, first, end in _SKIPPED.findall(nsqd.log):
            self.ledger.lost_in_power_cut(topic, int(first), int(end))

    def _is_reported(self, line: str) -> bool:
        """Return whether a line of fsck is about messages that a power cut has taken."""
        found = _LACKING.fullmatch(line)
        return found is not None and self.ledger.is_reported(found[1], int(found[2]), int(found[3]) + 1)

    def _publish_the_rest(self, nsqd: Nsqd) -> None:
        while (number := self.ledger.take_unanswered()) is not None:
            sent = self.ledger.messages[number]
            answer = nsqd.http("POST", f"/pub?topic={sent.topic}&key={sent.key.decode()}", b"%d " % number)
            assert answer.status == 200, answer
            self.ledger.answered([number], self.ledger.life)

    def _drain(self, nsqd: Nsqd, topic: str, channel: str) -> None:
        """Give back what is buried, and finish all that comes, until nothing is left."""
        deadline = time.monotonic() + DRAIN_TIMEOUT
        self.ledger.kicking(channel, topic)
        nsqd.post(f"/channel/kick?topic={topic}&channel={channel}")
        with subscribed(nsqd, topic, channel) as client:
            client.send(b"RDY 1000\n")
            while True:
                try:
                    message = client.message(0.02)
                except TimeoutError:
                    client.in_step()
                    left = nsqd.channel(topic, channel)
                    counts = {it: left[it] for it in ("depth", "in_flight_count", "deferred_count")}
                    if not any(counts.values()):
                        return
                    if time.monotonic() > deadline:
                        raise Violation(f"{topic}/{channel} doesn't run dry: {counts}") from None
                    continue
                number = self.ledger.arrived(channel, message, self.ledger.life)
                client.send(b"FIN %b\n" % message.id)
                self.ledger.finishing(channel, number, self.ledger.life)

    def check_histories(self, nsqd: Nsqd) -> None:
        """Wait until history shows all that has to be there, and check it. There is none unless this life keeps all."""
        if self.keeps_all:
            for topic in self.ledger.topics:
                self._check_history(nsqd, topic)

    def _check_history(self, nsqd: Nsqd, topic: str) -> None:
        deadline = time.monotonic() + CATCH_UP_TIMEOUT  # history shows what the store has
        stored: list[tuple[int, int]] = []
        place = 0
        while True:
            log, found, place = read_history(nsqd, self.ledger, topic, place)
            stored += found
            has_all = self.ledger.expected(topic) <= {number for _, number in stored}
            if not found and (has_all or time.monotonic() >= deadline):
                self.ledger.check_history(topic, log, stored)
                return
            if not found:
                time.sleep(0.02)  # another process gives no event to wait for


def _buried(nsqd: Nsqd, topic: str, channel: str) -> set[int]:
    answer = nsqd.http("GET", f"/channel/buried?topic={topic}&channel={channel}&limit={_MOST_BURIED}")
    assert answer.status == 200, answer
    return {int(json.loads(line)["body"].split()[0]) for line in answer.body.splitlines()}
