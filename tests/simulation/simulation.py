"""Random lives of a broker on a disk that fails and with a clock that jumps. All randomness comes from the seed."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final
from unittest import mock

from nsqcommon.wire.names import is_ephemeral
from nsqd.ack_option import Ack
from nsqd.broker.buried_queue import Verb
from nsqd.broker.rules import NO_CHANNEL_RULES, NO_TOPIC_RULES
from tests.simulation.disk import CHANGING, Call, Crash, SimulatedDisk, Stopped
from tests.simulation.life import Client, Life, small_journal
from tests.simulation.models import TopicModel
from tests.simulation.plans import ANYTHING, Plan, drawn_rules, rules_of_failures, settings_of_history, with_groups
from tests.simulation.promise import Violation

TOPICS: Final = ("orders", "orders", "clicks", "scratch")
CHANNELS: Final = ("mail", "mail", "audit", "tail#ephemeral")
# With groups, lives have fewer places, so that more of a group comes together.
TOPICS_WITH_GROUPS: Final = (*["orders"] * 7, "clicks")
CHANNELS_WITH_GROUPS: Final = (*["mail"] * 7, "audit", "audit", "tail#ephemeral")
DELAYS: Final = (0.001, 0.3, 5.0, 70.0)
# Of messages, if there are groups: a is larger than the others, None is no header, and the last three are no valid names.
_GROUPS: Final = (*[b"a"] * 6, b"b", b"b", b"c", "\u00fc".encode(), b"l" * 128, None, b"", b"l" * 129, b"\xff")
EVENTS: Final = (40, 160)  # at least, at most
FEWEST_FOR_A_BREAKER: Final = 4  # deliveries: few lives have 20 in a minute

_FAILING: Final = (
    "create",
    "write",
    "truncate",
    "sync",
    "rename",
    "unlink",
    "make folder",
    "remove folder",
    "sync folder",
)


@dataclass(slots=True)
class Outcome:
    seed: int
    error: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def run(
    seed: int,
    plan: Plan = ANYTHING,
    note: Callable[[str], None] | None = None,
    kind: Callable[[Random, Plan, Callable[[str], None]], Simulation] | None = None,
) -> Outcome:
    outcome = Outcome(seed)
    random = Random(seed)
    simulation = (kind or Simulation)(random, plan, note or outcome.trace.append)
    if note is not None:
        simulation.life.disk.on_call = simulation.tell_of_call
    try:
        with small_journal(), mock.patch("nsqd.broker.policy.FEWEST", FEWEST_FOR_A_BREAKER):
            simulation.run()
    except Violation as violation:
        outcome.error = str(violation)
    except (OSError, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        raise
    outcome.counts = simulation.counts
    return outcome


class Simulation:
    new_life: type[Life] = Life

    def __init__(self, random: Random, plan: Plan, note: Callable[[str], None]) -> None:
        self.random = random
        self.plan = plan
        self.topics = TOPICS_WITH_GROUPS if plan.groups else TOPICS
        self.channels = CHANNELS_WITH_GROUPS if plan.groups else CHANNELS
        self.counts: Counter[str] = Counter()
        self._note = note
        disk = SimulatedDisk(random=random, syncs_files=plan.syncs_files)
        disk.uncached = random.choice((0.0, 0.0, 0.5))
        disk.most_per_write = random.choice((None, None, 100))
        disk.drops_pages = random.random() < 0.2
        ack = plan.ack or random.choice((Ack.MEMORY, Ack.WRITTEN, Ack.WRITTEN, Ack.SYNCED))
        self.life = self.new_life(
            random,
            disk=disk,
            ack=ack,
            note=self._told,
            max_bytes_per_file=random.choice((300, 2_000, 20_000)),
            mem_queue_size=random.choice((0, 5, 10_000)),
            topic_ack={"scratch": random.choice((Ack.MEMORY, Ack.WRITTEN, Ack.SYNCED))} if plan.ack is None else {},
            **(settings_of_history(random) if plan.history else {}),
        )
        self.big = random.random() < 0.3  # messages take several pages
        self.steps_of_the_clock = random.random() < 0.3
        self.fails = plan.fails and random.random() < 0.5
        self._crash_at_stop = Crash.KILL
        if plan.buries:
            self._change_rules()

    def _told(self, text: str) -> None:
        self._note(f"{self.life.clock.true:10.3f} {text}" if hasattr(self, "life") else text)

    def tell_of_call(self, call: Call) -> None:
        if call.kind in CHANGING:
            self._told(f"    {call}")

    def run(self) -> None:
        life = self.life
        life.start(Crash.KILL)
        for _ in range(self.random.randint(*EVENTS)):
            try:
                self._event()
                if life.machine is not None:
                    life.check()
            except Stopped as stopped:
                self._told(f"stopped at {stopped}")
                life.crash(self._crash_at_stop)
                self._start(self._crash_at_stop)
        self.counts["calls"] = life.disk.number
        life.disk.stop_at = None
        if self.plan.groups and self.random.random() < 0.7:
            life.rules_at_end = with_groups(self.random, NO_CHANNEL_RULES)
        life.drain()
        if self.random.random() < 0.5:
            life.start(life.stop())
            life.drain()
        self.counts["starts"] = life.starts
        self.counts["acknowledged"] = life.ledger.acknowledged
        self.counts["delivered"] = life.ledger.delivered
        self.counts["redelivered"] = life.ledger.redelivered
        self.counts.update({f"policy: {cause}": count for cause, count in life.ledger.by_policy.items()})

    def _start(self, crash: Crash) -> None:
        self.counts[crash.value] += 1
        self.life.clock.sleep(self.random.choice((0.0, 1.0, 100.0)))
        if self.fails and self.random.random() < 0.2:
            self._fail()
        for _ in range(3):
            try:
                if self.life.try_to_start(crash):
                    return
            except Stopped:
                self.life.machine = None
            self.life.disk.crash(Crash.KILL, self.random)
            self.counts["failed starts"] += 1
        raise Violation("does not start on a disk that works")

    # Events

    def _event(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (50, self._some_turn),
            (20, self._pass_time),
            (5, self._operate_durably),
            (2, self._crash),
            (1, self._stop),
            (2, self._stop_soon),
        ]
        if self.fails:
            choices += [(3, self._fail), (2, self._fill_up), (6, self.life.disk.heal)]
        if self.plan.history:
            choices += [(2, self._use_up), (6, self._note_backlog)]
        if self.plan.buries:
            choices.append((1, self._change_rules))
        if self.plan.groups:
            choices += [(20, self._serve), (3, self._pile_up)]
            choices += [(2, self._change_groups), (3, self._fail_and_start_again)]
        if self.steps_of_the_clock:
            choices.append((2, self._step_clock))
        weights, events = zip(*choices, strict=True)
        self.random.choices(events, weights)[0]()

    def _some_turn(self) -> None:
        with self.life.turn():
            for _ in range(self.random.choice((1, 1, 1, 2, 4))):
                self._do_something()

    def _do_something(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (12, self._publish),
            (5, self._publish_deferred),
            (3, self._subscribe),
            (1, self._create),
            (14, self._finish),
            (5, self._requeue),
            (2, self._touch),
            (2, self._set_ready),
            (1, self._disconnect),
            (2, self._operate),
        ]
        if self.plan.history:
            choices += [(4, self._seek), (2, self._create_from), (4, self._restore), (3, self._redeliver)]
        if self.plan.buries:
            choices += [(5, self._bury), (2, self._requeue_free), (3, self._take_buried), (2, self._begin_job)]
            choices += [(1, self._stop_job), (2, self._undo_kick)]
        if self.plan.cancels:
            choices += [(3, self._cancel), (2, self._move)]
        if self.plan.groups:
            choices += [(8, self._publish), (6, self._subscribe), (3, self._requeue)]
        weights, actions = zip(*choices, strict=True)
        self.random.choices(actions, weights)[0]()

    def _publish(self) -> None:
        size = self.random.choice((0, 0, 100, 5000)) if self.big else self.random.choice((0, 0, 30, 100))
        single = self.random.random() < 0.5
        name, count = self.random.choice(self.topics), self.random.choice((1, 1, 3, 8))
        self.life.publish(name, count, size=size, single=single, groups=self._some_groups(count))

    def _some_groups(self, count: int) -> list[bytes | None]:
        if not self.plan.groups:
            return []
        if self.random.random() < 0.1:
            return [self.random.choice(_GROUPS)] * count
        return [self.random.choice(_GROUPS) for _ in range(count)]

    def _publish_deferred(self) -> None:
        name, count, delay = self.random.choice(self.topics), self.random.choice((1, 3)), self.random.choice(DELAYS)
        self.life.publish(name, count, delay=delay, groups=self._some_groups(count))

    def _subscribe(self) -> None:
        ready = self.random.choice((0, 1, 3, 20))
        timeout = self.random.choice((0.5, 20.0))
        topic, channel = self.random.choice(self.topics), self.random.choice(self.channels)
        self.life.subscribe(topic, channel, ready=ready, timeout=timeout)

    def _create(self) -> None:
        self.life.create_channel(self.random.choice(TOPICS), self.random.choice(("mail", "audit")))

    def _seek(self) -> None:
        if (found := self._some_lasting()) is not None:
            self.life.seek(*found, self.life.place_in(found[0]))

    def _create_from(self) -> None:
        if self.life.ledger.topics:
            topic = self.random.choice(list(self.life.ledger.topics.values()))
            self.life.create_channel_from(topic, self.random.choice(("mail", "audit", "late")))

    def _some_lasting(self) -> tuple[TopicModel, str] | None:
        topics = [topic for topic in self.life.ledger.topics.values() if self._lasting(topic)]
        if not topics:
            return None
        topic = self.random.choice(topics)
        return topic, self.random.choice(self._lasting(topic))

    def _note_backlog(self) -> None:
        if (found := self._some_lasting()) is not None:
            self.life.note_backlog(*found)

    def _restore(self) -> None:
        if self.life.noted:
            self.counts["restored"] += self.life.restore(self.random.choice(self.life.noted))

    def _redeliver(self) -> None:
        if (found := self._some_lasting()) is not None:
            topic, name = found
            first = self.life.place_in(topic)
            end = self.life.running.broker.topics[topic.name].high_watermark
            self.life.redeliver(topic, name, range(first, min(first + self.random.choice((1, 3, 20)), end)))
            self.counts["redeliveries"] += 1

    def _lasting(self, topic: TopicModel) -> list[str]:
        return [name for name in topic.channels if not is_ephemeral(name)]

    def _client(self) -> Client | None:
        open_ = [client for client in self.life.clients if client.is_open]
        return self.random.choice(open_) if open_ else None

    def _finish(self) -> None:
        if (client := self._client()) is not None and client.in_hand:
            ids = self.random.sample(sorted(client.in_hand), self.random.randint(1, len(client.in_hand)))
            self.life.finish(client, ids)

    def _requeue(self) -> None:
        if (client := self._client()) is not None and client.in_hand:
            delay = self.random.choice((0.0, 0.0, *DELAYS))
            self.life.requeue(client, self.random.choice(sorted(client.in_hand)), delay)

    def _requeue_free(self) -> None:
        if (client := self._client()) is not None and client.in_hand:
            delay = self.random.choice((0.0, *DELAYS))
            self.life.requeue(client, self.random.choice(sorted(client.in_hand)), delay, counts=False)

    def _bury(self) -> None:
        if (client := self._client()) is not None and client.in_hand:
            for message_id in self.random.sample(sorted(client.in_hand), self.random.randint(1, len(client.in_hand))):
                self.life.bury(client, message_id)
                self.counts["buried"] += 1

    def _some_buried(self) -> tuple[TopicModel, str] | None:
        """Return a channel, most of the time one with buried messages."""
        found = [
            (topic, name)
            for topic in self.life.ledger.topics.values()
            for name, channel in topic.channels.items()
            if channel.buried.held
        ]
        return self.random.choice(found) if found and self.random.random() < 0.9 else self._some_lasting()

    def _verb(self) -> Verb:
        return "kick" if self.random.random() < 0.7 else "discard"

    def _take_buried(self) -> None:
        if (found := self._some_buried()) is not None:
            topic, name = found
            held = list(topic.channels[name].buried.held)
            sequences = self.random.sample(held, self.random.randint(0, len(held)))
            verb = self._verb()
            self.life.take_buried(topic, name, verb, [*sequences, self.random.randint(0, topic.tail)])
            self.counts[f"{verb}s"] += len(sequences)

    def _begin_job(self) -> None:
        if (found := self._some_buried()) is not None:
            rate = self.random.choice((0.0, 0.1, 10.0))
            reason, limit = self.random.choice(("", "", "bad", "attempts")), self.random.choice((0, 0, 2))
            self.life.begin_job(*found, self._verb(), rate=rate, reason=reason, limit=limit)
            self.counts["jobs"] += 1

    def _undo_kick(self) -> None:
        if (found := self._some_lasting()) is not None:
            self.counts["taken back"] += self.life.undo_kick(*found)

    def _stop_job(self) -> None:
        if (found := self._some_lasting()) is not None:
            self.life.stop_job(*found)

    def _some_waiting(self) -> tuple[TopicModel, int] | None:
        """Return a message, often one that somebody still owes."""
        topics = [topic for topic in self.life.ledger.topics.values() if topic.tail]
        if not topics:
            return None
        topic = self.random.choice(topics)
        owed = [sequence for channel in topic.channels.values() for sequence in channel.owed]
        if owed and self.random.random() < 0.8:
            return topic, self.random.choice(owed)
        return topic, self.random.randrange(topic.tail)

    def _some_channels(self, topic: TopicModel) -> list[str]:
        names = list(topic.channels)
        return [self.random.choice(names)] if names and self.random.random() < 0.4 else names

    def _cancel(self) -> None:
        if (found := self._some_waiting()) is not None:
            topic, start = found
            end = min(start + self.random.choice((1, 1, 3)), topic.tail)
            self.counts["cancelled"] += self.life.cancel(topic, start, end, self._some_channels(topic))

    def _move(self) -> None:
        if (found := self._some_waiting()) is not None:
            delay = self.random.choice((0.0, *DELAYS))
            self.counts["moved"] += self.life.move(*found, delay, self._some_channels(found[0]))

    def _change_rules(self) -> None:
        rules, topic_rules = rules_of_failures(self.random), NO_TOPIC_RULES
        if self.plan.limits:
            rules, topic_rules = drawn_rules(self.random, rules)
        if self.plan.groups:
            rules = with_groups(self.random, rules)
        self.life.change_rules(rules, topic_rules)

    def _change_groups(self) -> None:
        rules = with_groups(self.random, self.life.rules.of_channels)
        self.life.change_rules(rules, self.life.rules.of_topics)

    def _serve(self) -> None:
        """Have consumers work for a while, and most of what they do succeeds."""
        for _ in range(self.random.choice((5, 20, 40))):
            busy = [client for client in self.life.clients if client.is_open and client.in_hand]
            if not busy:
                return
            with self.life.turn():
                client = self.random.choice(busy)
                ids = self.random.sample(sorted(client.in_hand), self.random.randint(1, len(client.in_hand)))
                if self.random.random() < 0.9:
                    self.life.finish(client, ids)
                else:
                    self.life.requeue(client, ids[0], self.random.choice((0.0, 0.001, 0.3)))
            self.life.pass_time(self.random.choice((0.0, 0.001, 0.03)))

    def _touch(self) -> None:
        if (client := self._client()) is not None and client.in_hand:
            self.life.touch(client, self.random.choice(sorted(client.in_hand)))

    def _set_ready(self) -> None:
        if (client := self._client()) is not None:
            self.life.set_ready(client, self.random.choice((0, 1, 3, 20)))

    def _disconnect(self) -> None:
        if (client := self._client()) is not None:
            self.life.disconnect(client)

    def _operate(self) -> None:
        if not self.life.ledger.topics:
            return
        topic = self.random.choice(list(self.life.ledger.topics.values()))
        whole: list[Callable[[], None]] = [
            lambda: self.life.pause_topic(topic, True),
            lambda: self.life.pause_topic(topic, False),
            lambda: self.life.pause_topic(topic, False),
            lambda: self.life.empty_topic(topic),
        ]
        if self.random.random() < 0.2:
            whole.append(lambda: self.life.delete_topic(topic))
        names = self._lasting(topic)
        if names and self.random.random() < 0.6:
            whole = self._of_channel(topic, self.random.choice(names))
        self.random.choice(whole)()

    def _of_channel(self, topic: TopicModel, name: str) -> list[Callable[[], None]]:
        return [
            lambda: self.life.pause_channel(topic, name, True),
            lambda: self.life.pause_channel(topic, name, False),
            lambda: self.life.pause_channel(topic, name, False),
            lambda: self.life.empty_channel(topic, name),
            lambda: self.life.delete_channel(topic, name),
        ]

    def _operate_durably(self) -> None:
        with self.life.turn():
            self._operate()
        self.life.make_durable()

    def _pile_up(self) -> None:
        """Have so much of one group that others have to be served beside it."""
        with self.life.turn():
            self.life.publish("orders", 25, groups=[b"a"] * 25)
            self.life.publish("orders", 3, groups=self._some_groups(3))
            self.life.subscribe("orders", "mail", ready=self.random.choice((1, 2, 3)), timeout=20.0)
        self._serve()
        with self.life.turn():
            self.life.publish("orders", 3, groups=self._some_groups(3))
        self._serve()

    def _fail_and_start_again(self) -> None:
        """Crash when a message has just failed, and subscribe again at once."""
        with self.life.turn():
            self._requeue()
        if self.random.random() < 0.7:
            self.life.pass_time(0.2)  # so that the journal has it, and the next message of its group may have come
        self._crash()
        with self.life.turn():
            self.life.subscribe("orders", "mail", ready=self.random.choice((1, 3, 20)), timeout=20.0)

    # Time, crashes, failures

    def _pass_time(self) -> None:
        self.life.pass_time(self.random.choice((0.001, 0.03, 0.03, 0.2, 0.2, 1.5, 30.0)))

    def _step_clock(self) -> None:
        seconds = self.random.choice((-3600.0, -1.0, 1.0, 3600.0))
        self._told(f"the wall clock is set by {seconds}")
        self.life.clock.step(seconds)

    def _crash(self) -> None:
        crash = self.random.choice(self.plan.crashes)
        self.life.crash(crash)
        self._start(crash)

    def _stop(self) -> None:
        self._start(self.life.stop())

    def _stop_soon(self) -> None:
        disk = self.life.disk
        disk.stop_at = disk.number + self.random.randint(1, 30)
        disk.torn = self.random.random()
        self._crash_at_stop = self.random.choice(self.plan.crashes)

    def _fail(self) -> None:
        kinds = self.random.sample(_FAILING, self.random.choice((1, 1, 3)))
        code = self.random.choice((errno.EIO, errno.ENOSPC))
        first = self.life.disk.number + self.random.randint(1, 10)
        last = first + self.random.choice((0, 3, 1000))
        self._told(f"{', '.join(kinds)} fail with {errno.errorcode[code]} at calls {first} to {last}")
        self.life.disk.fail(
            code,
            *kinds,
            matches=lambda call: first <= call.number <= last,
            bytes_written=self.random.choice((0, 20, 1000)),
        )
        self.counts["failures"] += 1

    def _use_up(self) -> None:
        """Let others fill the disk, into the reserve or nearly so."""
        disk, reserve = self.life.disk, self.life.settings.options.disk_reserve
        if self.random.random() < 0.5:
            disk.capacity = None
        elif reserve:
            disk.capacity = disk.used + self.random.choice((reserve // 2, reserve, reserve + 2000, 2 * reserve))
            self._told(f"the disk has room for {disk.capacity - disk.used} bytes, {reserve} are kept free")
            self.counts["reserves reached"] += 1

    def _fill_up(self) -> None:
        disk = self.life.disk
        disk.capacity = disk.used + self.random.choice((0, 100, 1000))
        self._told("the disk is almost full")
        self.counts["full disks"] += 1
