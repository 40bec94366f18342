"""Opens the data path, imports any data of a Go nsqd, recovers the broker, and runs the store."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING

import trio

from nsqcommon.options import seconds
from nsqcommon.turn import in_turn
from nsqd.broker.broker import Broker
from nsqd.broker.journal_replay import DeletedNames, complete, missing_fronts, replay
from nsqd.broker.latency import LatencySettings
from nsqd.broker.message_id import IdSource
from nsqd.broker.settings import BrokerSettings
from nsqd.go_import.take_over import take_over
from nsqd.log.data_path import DataPathError
from nsqd.log.files import error_text
from nsqd.log.owner import owned
from nsqd.log.reading.refusals import ReadRefused, patiently
from nsqd.log.settings import LogSettings
from nsqd.log.store import DiskStore
from nsqd.log.store_tasks import StoreTasks
from nsqd.log.sync.syncer import SyncFailed

if TYPE_CHECKING:
    from nsqcommon.poller import Poller
    from nsqd.broker.journal_replay import TopicState
    from nsqd.broker.rules import RuleSource
    from nsqd.log.recovery.store import Recovered
    from nsqd.log.settings import LogPolicy
    from nsqd.options import Options
    from nsqd.remote.copy import RemoteCopy
    from nsqd.turn import Turn

log = logging.getLogger(__name__)


def log_settings(options: Options, policy: LogPolicy | None) -> LogSettings:
    return LogSettings(options, policy)


def broker_settings(options: Options) -> BrokerSettings:
    return BrokerSettings(
        mem_queue_size=options.mem_queue_size,
        mem_queue_bytes=options.mem_queue_bytes,
        max_msg_timeout=seconds(options.max_msg_timeout),
        latency=_latency_of(options),
        prefers_near_consumers=options.prefers_near_consumers,
        idempotence_window=options.idempotence_window,
        idempotence_keys=options.idempotence_keys,
    )


def _latency_of(options: Options) -> LatencySettings | None:
    percentiles = options.e2e_processing_latency_percentile
    return LatencySettings(percentiles, seconds(options.e2e_processing_latency_window_time)) if percentiles else None


@contextmanager
def opened_store(options: Options, policy: LogPolicy | None) -> Iterator[DiskStore]:
    """Open the data path, which has all that its recovery needs. Raises StartupError."""
    remote = remote_copy(options)
    with locked_store(options, policy, remote) as store:
        if remote is not None:
            remote.attach(store)
        take_over_from_go(store, options)
        yield store


@contextmanager
def locked_store(options: Options, policy: LogPolicy | None, remote: RemoteCopy | None) -> Iterator[DiskStore]:
    """Open the data path as far as that is possible before this process owns its name. Raises StartupError."""
    files = remote.files if remote is not None else None
    store = DiskStore.open(options.data_path or ".", log_settings(options, policy), files=files)
    data_path = store.data_path
    try:
        with owned(data_path.folder, store.files, take_over=options.take_over, pause=data_path.pause) as was_elsewhere:
            if was_elsewhere:
                data_path.read_again()
            try:
                yield store
            finally:
                if remote is not None and store.remote is not None and store.remote.is_lost:
                    remote.leave()
                    store.abandon()
                elif store.is_recovered:
                    store.close()
    finally:
        if not store.is_recovered:  # a failed start changes nothing on disk
            store.abandon()


def remote_copy(options: Options) -> RemoteCopy | None:
    if not options.remote:
        return None
    from nsqd.remote.copy import RemoteCopy  # imported here, because most nodes have no use for its libraries

    return RemoteCopy(options)


def take_over_from_go(store: DiskStore, options: Options) -> None:
    """Import the data of a Go nsqd, if there is any. Raises StartupError."""
    take_over(
        store.data_path,
        store.files,
        pause=store.data_path.pause,
        begin=options.import_go,
        node_id=options.node_id,
        max_msg_size=options.max_msg_size,
        max_bytes_per_file=options.max_bytes_per_file,
    )


def recovered_broker(store: DiskStore, options: Options, rules: RuleSource) -> Broker:
    recovered = store.recover()
    if store.remote is not None:
        store.remote.begin()
    timestamp = time_ns()  # before the monotonic clock: then a pause in between makes messages due late, not early
    try:
        return restored_broker(store, recovered, options, rules, now=monotonic(), timestamp=timestamp)
    except ReadRefused as error:
        raise DataPathError(f"failed to open data-path: {error_text('read', error.filename, error)}") from error


def restored_broker(
    store: DiskStore, recovered: Recovered, options: Options, rules: RuleSource, *, now: float, timestamp: int
) -> Broker:
    """Rebuild the broker from the recovered store.

    The state of topics and channels comes from the journal and topology.json, and their messages from the logs.
    """
    ids = IdSource(options.node_id, timestamp=timestamp, reserved=recovered.ids_reserved, reserve=store.reserve_ids)
    broker = Broker(
        store,
        broker_settings(options),
        ids=ids,
        now=now,
        timestamp=timestamp,
        random_percent=partial(random.Random().randrange, 100),
        rules=rules,
        note=partial(log.info, "%s"),
        learns=bool(options.lookupd_tcp_address),
    )
    states, completed = _recovered_states(recovered, store.data_path.pause)
    for name in completed:
        log.warning(
            "TOPIC(%s): recreated channels that were missing from the journal; they read the topic from its start", name
        )
    for name, start, end in missing_fronts(states, {name: it.first for name, it in recovered.logs.items()}):
        store.reads.lacks_front(name, start, end)
    broker.restore(states, recovered.logs, unrecorded=completed)
    if broker.topology() != recovered.topology:  # topology.json was damaged, or is older than the journal
        store.topology.set_names(broker.topology())
    for name, count in broker.turn.lost.items():
        log.error("TOPIC(%s): %d messages that channels still need are missing from the disk", name, count)
    return broker


def _recovered_states(recovered: Recovered, pause: Callable[[float], None]) -> tuple[dict[str, TopicState], set[str]]:
    """Return the topics' states, and the names of the topics that were incomplete in the journal."""
    dropped = DeletedNames()
    states = replay(dropped.collect(recovered.changes))
    # A deleted topic may have a folder again, if nsqd was killed between recreating it and writing the journal's entry.
    deleted = dropped.topics if recovered.journal_is_whole else set()
    logs = recovered.logs
    completed = complete(
        states,
        recovered.topology,
        {name: topic_log.first for name, topic_log in logs.items() if name not in deleted},
        journal_is_whole=recovered.journal_is_whole,
        compacted=lambda topic: patiently(lambda: list(logs[topic].reader.compacted_messages()), pause),
        deleted=dropped.channels,
    )
    return states, completed


@asynccontextmanager
async def running_store(
    store: DiskStore, broker: Broker, poller: Poller[Turn], *, wake_readers: Callable[[str], None]
) -> AsyncIterator[None]:
    turn = poller.turn

    def loaded(topic: str) -> None:
        with in_turn(turn):
            broker.loaded(topic)
        wake_readers(topic)

    def settled() -> None:
        with in_turn(turn):
            pass

    tasks = StoreTasks(store, broker, on_loaded=loaded, on_settled=settled)
    syncer = store.syncer
    poller.watch(tasks.thread.doorbell.descriptor, syncer.end, is_soon=syncer.answers_soon)
    async with trio.open_nursery() as nursery:
        if store.remote is not None:
            nursery.start_soon(store.remote.run, turn)
        await nursery.start(tasks.run)
        # If recovery has moved positions back to the tail, sync that before the first append. Otherwise, after a crash,
        # the old positions would count new messages as finished.
        try:
            await store.sync()
        except SyncFailed as failed:
            # Go on anyway: on a full disk, consuming frees space. Until the journal is synced, we refuse publishes.
            store.journal_keeper.distrust(failed.error)
        yield
        nursery.cancel_scope.cancel()
