"""outbox_to_nsq: publish the rows of a table, each once, whatever crashes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from nsqclient import NSQError, Producer
from nsqcommon.durations import HOUR, MINUTE, SECOND, Nanoseconds
from nsqcommon.option_kinds import DURATION
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqtools import flags
from nsqtools.client_flags import CLIENT_OPTIONS, PRODUCER_OPT, client_config
from nsqtools.command import LAST_ANSWERS, ToolFailed, ToolOptions, run_tool, run_until
from nsqtools.outbox import (
    LONGEST_ERROR,
    OutboxRow,
    PublishOutcome,
    RelayCounts,
    Unpublishable,
    is_trouble,
    repeat_within,
    verdict_of,
)
from nsqtools.outbox_nodes import Nodes
from nsqtools.outbox_sql import checked_table
from nsqtools.outbox_tables import (
    DatabaseDown,
    DatabaseWrong,
    OutboxTable,
    is_database,
    open_outbox,
    statements_for,
)

log = logging.getLogger(__name__)

ABOUT: Final = """\
Publishes the rows of a table in Postgres or SQLite, each once: your application writes its messages into the table, in
the transaction of its own changes, and this relay publishes them to nsqd (docs/how-to/outbox.md).

Before it publishes a row, the relay commits the row's node. If anything dies before the row is marked as sent, it is
repeated at the same node with the same key, which nsqd recognizes within its --idempotence-window. If a row could not
be repeated in time, its outcome is unknown: it is parked with the reason in its column `error`, and --repeat-unknown
publishes it again. A row that cannot be published is parked too, and the others go on.

You can run several relays: one works, and the others wait. NSQ's own nsqd has no keys and cannot be used."""

_ANSWER_TIMEOUT: Final = 10.0  # seconds
_RECONNECT: Final = (0.5, 10.0)  # seconds: the first and the maximum pause
_LINE_EVERY: Final = 1.0
_CLEAN_UP_EVERY: Final = 10.0
_UNKNOWN: Final = "outcome unknown: not answered in time, and the node may have forgotten the key"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    database: str = option("", "postgresql://... (as in libpq) or sqlite:///path")
    table: str = option("outbox", "table, with its schema if needed")
    topic: str = option("", "topic of rows without one")
    nsqd_tcp_address: tuple[str, ...] = option((), flags.NSQD_TCP_ADDRESS)
    lookupd_http_address: tuple[str, ...] = option((), flags.DESTINATION_LOOKUPD)
    poll_interval: Nanoseconds = option(SECOND, "how often to look for rows if there were none", kind=DURATION)
    batch_size: int = option(200, "maximum number of rows in flight", at_least=1)
    delete: bool = option(False, "delete sent rows, instead of setting sent_at")
    keep: Nanoseconds = option(
        0, "delete rows this long after they were sent: 12h, 7d; 0: keep them", kind=DURATION, at_least=0
    )
    create_table: bool = option(False, "print the table's schema, create the table if it is missing, and exit")
    repeat_unknown: bool = option(False, "publish rows with an unknown outcome again, which may duplicate them")
    idempotence_window: Nanoseconds = option(
        10 * MINUTE, "--idempotence-window of the nsqds; if they differ, the shortest", kind=DURATION
    )
    defer_at_most: Nanoseconds = option(
        HOUR, "rows with a later deliver_at wait in the table; at most --max-defer-timeout of the nsqds", kind=DURATION
    )
    producer_opt: tuple[str, ...] = option((), PRODUCER_OPT, kind=CLIENT_OPTIONS)

    def check(self) -> None:
        if not is_database(self.database):
            raise StartupError("--database required: postgresql://... or sqlite:///path")
        try:
            checked_table(self.table)
        except ValueError as error:
            raise StartupError(str(error)) from error
        if self.create_table:
            return
        flags.check_sources(self.nsqd_tcp_address, self.lookupd_http_address)
        flags.check_addresses(self.nsqd_tcp_address, self.lookupd_http_address)
        if self.topic:
            flags.check_topic(self.topic)
        if self.delete and self.keep:
            raise StartupError("use --delete or --keep not both")
        for name in ("poll_interval", "idempotence_window", "defer_at_most"):
            if getattr(self, name) <= 0:
                raise StartupError(f"--{name.replace('_', '-')} should be positive")

    @property
    def must_connect(self) -> bool:
        return False  # an nsqd that is down may come back, or another one may do

    @property
    def window(self) -> float:
        """How long nsqds remember a key (seconds)."""
        return self.idempotence_window / SECOND

    @property
    def repeat_within(self) -> float:
        return repeat_within(self.window)


async def _in_thread(work: Callable[[], T]) -> T:
    """Call a blocking function. A hung database doesn't block the end of the tool."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


class Relay:
    """Moves rows from one database connection to the nsqds, in rounds."""

    def __init__(self, options: Options, outbox: OutboxTable, nodes: Nodes, counts: RelayCounts) -> None:
        self._options = options
        self._outbox = outbox
        self._nodes = nodes
        self._counts = counts
        self._is_in_doubt = True  # as far as we know: another relay, or an earlier run, may have left rows
        self._cleaned_at = trio.current_time() - _CLEAN_UP_EVERY

    async def begin(self) -> None:
        """Release the rows parked as unknown, if --repeat-unknown is set."""
        if self._options.repeat_unknown:
            self._say_again(await _in_thread(self._outbox.send_parked_again))

    async def round(self) -> bool:
        """Publish one batch. Return True if there may be more to do at once."""
        if self._is_in_doubt:
            await self._repeat()
        await self._clean_up()
        node = await self._nodes.next()
        producer = None if node is None else await self._nodes.producer(node)
        if node is None or producer is None:
            return False
        options = self._options
        until = trio.current_time() + options.repeat_within
        rows = await _in_thread(
            partial(self._outbox.claim, node, count=options.batch_size, due_within=options.defer_at_most / SECOND)
        )
        if rows:
            await self._settle(await self._publish(node, producer, rows, until), node)
        return bool(rows)

    # Rows in doubt

    async def _repeat(self) -> None:
        # Rows that aren't parked now may be repeated until half of the margin is over.
        until = trio.current_time() + (self._options.window - self._options.repeat_within) / 2
        await self._give_up_old()
        self._is_in_doubt = False
        self._counts.in_doubt = 0
        for node in await _in_thread(self._outbox.nodes_in_doubt):
            await self._repeat_at(node, until)

    async def _give_up_old(self) -> None:
        seconds = self._options.repeat_within
        if self._options.repeat_unknown:
            self._say_again(await _in_thread(partial(self._outbox.send_again, seconds)))
            return
        for id, node in await _in_thread(partial(self._outbox.give_up, _UNKNOWN, seconds)):
            self._counts.unknown += 1
            log.error("row %s is parked: unknown whether nsqd %s has it", id, node)

    def _say_again(self, ids: Sequence[object]) -> None:
        for id in ids:
            self._counts.again += 1
            log.warning("row %s is published again, and may already be in its topic", id)

    async def _repeat_at(self, node: str, until: float) -> None:
        """Repeat one row at a time: if nsqd refuses one, it closes the connection, and the next ones would be in doubt
        again.
        """
        rows = await _in_thread(partial(self._outbox.in_doubt, node, self._options.batch_size))
        self._counts.in_doubt += len(rows)
        self._is_in_doubt |= len(rows) == self._options.batch_size
        producer = await self._nodes.producer(node)
        if producer is None:
            self._is_in_doubt |= bool(rows)
            return
        for row in rows:
            if not await self._repeat_one(row, node, producer, until):
                self._is_in_doubt = True
                return

    async def _repeat_one(self, row: OutboxRow, node: str, producer: Producer, until: float) -> bool:
        """Repeat a row. Return True to go on with this node."""
        outcomes = await self._publish(node, producer, [row], until)
        ((_, error),) = outcomes
        verdict = _verdict(error, is_repeat=True)
        await self._settle(outcomes, node, is_repeat=True)
        if verdict is PublishOutcome.IN_DOUBT:
            return False
        self._counts.in_doubt -= 1
        if verdict is PublishOutcome.SENT:
            self._counts.repeated += 1
        return True

    # One batch

    async def _publish(
        self, node: str, producer: Producer, rows: Sequence[OutboxRow], until: float
    ) -> list[tuple[OutboxRow, Exception | None]]:
        """Publish rows in order, all in flight at the same time. Return each one's verdict.

        Nothing is sent after `until`: if the relay was suspended that long, it may have lost its lock, another relay
        may have repeated the rows, and nsqd may have forgotten their keys.
        """
        outcomes: dict[int, Exception | None] = {}
        receipts = {}
        trouble: Exception | None = None
        with trio.move_on_after(_ANSWER_TIMEOUT):
            for number, row in enumerate(rows):
                if trouble is not None:
                    outcomes[number] = trouble
                    continue
                if trio.current_time() >= until:
                    break
                try:
                    it = row.publication(self._options.topic)
                    receipts[number] = await producer.submit(
                        it.topic, it.body, delay=it.delay, key=it.key, headers=it.headers or None
                    )
                except ValueError as error:
                    outcomes[number] = Unpublishable(str(error))
                except NSQError as error:  # nothing of this row was sent
                    outcomes[number] = trouble = error
            for receipt in receipts.values():
                await receipt.wait()
        for number in range(len(rows)):
            if number not in outcomes:
                found = receipts.get(number)
                is_answered = found is not None and found.done
                outcomes[number] = found.error if found is not None and is_answered else _NoAnswer()
        failures = [error for error in outcomes.values() if is_trouble(error) and not isinstance(error, Unpublishable)]
        if failures:
            self._nodes.failed(node, str(failures[0]))
        else:
            self._nodes.succeeded(node)
        return [(row, outcomes[number]) for number, row in enumerate(rows)]

    async def _settle(
        self, outcomes: Sequence[tuple[OutboxRow, Exception | None]], node: str, *, is_repeat: bool = False
    ) -> None:
        """Store the verdicts. Rows that stay in doubt need no update."""
        by_verdict: dict[PublishOutcome, list[OutboxRow]] = {verdict: [] for verdict in PublishOutcome}
        for row, error in outcomes:
            verdict = _verdict(error, is_repeat=is_repeat)
            by_verdict[verdict].append(row)
            if error is not None and verdict in (PublishOutcome.REFUSED, PublishOutcome.REFUSED_LATER):
                await self._refuse(row, error, node, is_certain=verdict is PublishOutcome.REFUSED)
        sent = by_verdict[PublishOutcome.SENT]
        await _in_thread(partial(self._outbox.sent, sent, delete=self._options.delete))
        self._counts.sent += len(sent)
        await _in_thread(partial(self._outbox.release, by_verdict[PublishOutcome.NOT_STORED]))
        if by_verdict[PublishOutcome.IN_DOUBT]:
            self._is_in_doubt = True
            if not is_repeat:
                self._counts.in_doubt += len(by_verdict[PublishOutcome.IN_DOUBT])

    async def _refuse(self, row: OutboxRow, error: Exception, node: str, *, is_certain: bool) -> None:
        reason = str(error)
        if not is_certain:
            reason = f"outcome unknown: the repeat was refused: {reason}"
        reason = reason[:LONGEST_ERROR]
        self._counts.refused += is_certain
        self._counts.unknown += not is_certain
        log.error("row %s is parked: %s", row.id, reason)
        await _in_thread(partial(self._outbox.refuse, row, reason, is_certain=is_certain))

    async def _clean_up(self) -> None:
        if self._options.keep and trio.current_time() >= self._cleaned_at + _CLEAN_UP_EVERY:
            self._cleaned_at = trio.current_time()
            await _in_thread(partial(self._outbox.clean_up, self._options.keep / SECOND))


class _NoAnswer(NSQError):
    def __str__(self) -> str:
        return f"no answer within {_ANSWER_TIMEOUT:g} s"


def _verdict(error: Exception | None, *, is_repeat: bool) -> PublishOutcome:
    # Such a row was never sent, whenever it was tried.
    return PublishOutcome.REFUSED if isinstance(error, Unpublishable) else verdict_of(error, is_repeat=is_repeat)


# From start to end


async def run(options: Options, stop: trio.Event) -> int:
    if options.create_table:
        await _in_thread(partial(_create_table, options))
        return 0
    counts = RelayCounts()
    await run_until(stop, lambda: _relay_and_tell(options, counts, stop), grace=LAST_ANSWERS)
    return 0


def _create_table(options: Options) -> None:
    sys.stdout.write(statements_for(options.database, options.table).schema)
    try:
        outbox = open_outbox(options.database, options.table, make=True)
        outbox.create()
        outbox.check()
        outbox.close()
    except (DatabaseDown, DatabaseWrong) as error:
        raise ToolFailed(f"database: {error}") from error


async def _relay_and_tell(options: Options, counts: RelayCounts, stop: trio.Event) -> None:
    config = client_config("outbox_to_nsq", options.producer_opt, drain_timeout=0.0)
    async with trio.open_nursery() as nursery:
        nodes = Nodes(options.nsqd_tcp_address, options.lookupd_http_address, config, nursery)
        nursery.start_soon(_tell, counts)
        await _relay(options, nodes, counts, stop)
        nursery.cancel_scope.cancel()


async def _relay(options: Options, nodes: Nodes, counts: RelayCounts, stop: trio.Event) -> None:
    """Reconnect to the database until `stop` is set. Raise ToolFailed if that can't help."""
    pause, longest = _RECONNECT
    while not stop.is_set():
        try:
            outbox = await _in_thread(partial(open_outbox, options.database, options.table))
            began = trio.current_time()
            try:
                await _work(options, outbox, nodes, counts, stop)
            finally:
                outbox.close()
                if trio.current_time() > began + longest:  # accepting us and then refusing isn't better
                    pause = _RECONNECT[0]
        except DatabaseDown as error:
            log.error("database: %s; next try in %g s", error, pause)
            await _sleep_until(stop, pause)
            pause = min(2 * pause, longest)
        except DatabaseWrong as error:
            raise ToolFailed(f"database: {error}") from error


async def _work(options: Options, outbox: OutboxTable, nodes: Nodes, counts: RelayCounts, stop: trio.Event) -> None:
    await _in_thread(outbox.check)
    interval = options.poll_interval / SECOND
    if not await _in_thread(outbox.lock):
        log.info("another relay works on %s; waiting", options.table)
        while not await _in_thread(outbox.lock):
            await _sleep_until(stop, interval)
            if stop.is_set():
                return
    log.info("relaying %s", options.table)
    relay = Relay(options, outbox, nodes, counts)
    await relay.begin()
    while not stop.is_set():
        if not await relay.round():
            await _sleep_until(stop, interval)


async def _sleep_until(stop: trio.Event, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await stop.wait()


async def _tell(counts: RelayCounts) -> None:
    """Log a line per second while something happens."""
    said, before = counts.line(1.0, counts.sent), 0
    try:
        while True:
            before = counts.sent
            await trio.sleep(_LINE_EVERY)
            if counts.line(1.0, counts.sent) != said:
                log.info("%s", counts.line(_LINE_EVERY, before))
                said = counts.line(1.0, counts.sent)
    finally:
        log.info("%s", counts.line(_LINE_EVERY, before))


def main() -> int:
    return run_tool("outbox_to_nsq", Options, run, about=ABOUT)
