"""The endpoints of the whole node: health, statistics, metrics, and draining."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, time_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqcommon.daemon import version_line
from nsqcommon.durations import parse_duration, seconds
from nsqcommon.http_api import EMPTY, JSON, V1, HttpError, Request, Response, handler_slices, json, plain, text, truth
from nsqcommon.prometheus import CONTENT_TYPE, exposition_pieces
from nsqcommon.version import NSQ_VERSION, suite_version
from nsqcommon.wire.lookup import DRAINING
from nsqd.broker import stats
from nsqd.broker.stats_records import only_about
from nsqd.http.quick import ping_answer
from nsqd.http.watchers import Watchers
from nsqd.stats.json import stats_json
from nsqd.stats.memory import memory_now
from nsqd.stats.prometheus import nsqd_metrics
from nsqd.stats.text import stats_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

    from nsqcommon.prometheus import Metric
    from nsqcommon.slices import Slices
    from nsqd.broker.stats_records import BrokerSnapshot
    from nsqd.broker.store import RemoteSnapshot
    from nsqd.http.calls import Calls
    from nsqd.http.config import ConfigSettings
    from nsqd.policy.policy_file import PolicyFile
    from nsqd.readers import LogConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """Facts about this node that aren't options. Ports are the actual ones, -1 for a Unix socket, or 0 for none."""

    hostname: str
    tcp_port: int
    http_port: int
    node: str = ""  # the id of the data path
    worker: int = -1  # the worker's number; -1 if this nsqd isn't one of several workers


class StartDrain(Protocol):
    """Starts a drain. Returns False if `retire` is set but a drain without it is already under way."""

    def __call__(self, *, stay: float | None, retire: bool) -> bool: ...


class LogFigures(NamedTuple):
    """The figures in `/metrics` about readers of logs, and about requests that wait for a log to grow."""

    waiting: Sized
    lags: Callable[[], Iterable[tuple[str, LogConsumer, int]]]  # topic, reader, and its lag in messages


class NodeEndpoints:
    def __init__(
        self,
        calls: Calls,
        settings: ConfigSettings,
        node: NodeInfo,
        start_drain: StartDrain,
        take_drain_back: Callable[[], bool],
        is_draining: Callable[[], bool],
        logs: LogFigures,
        policy: PolicyFile | None,
        certificate_metrics: Callable[[], Sequence[Metric]],
    ) -> None:
        self._calls = calls
        self._broker = calls.broker
        self._settings = settings
        self._node = node
        self._start_drain = start_drain
        self._take_drain_back = take_drain_back
        self._is_draining = is_draining
        self._logs = logs
        self._policy = policy
        self._certificate_metrics = certificate_metrics
        self._watchers = Watchers()

    async def ping(self, request: Request) -> Response:
        return ping_answer(self._broker.store.health)

    async def ready(self, request: Request) -> Response:
        """Return 200 if clients should use this node, 503 if it is draining, or 500 if its storage is faulty."""
        self._note_standby(request)
        if self._is_draining():
            return plain(DRAINING, status=503)
        return ping_answer(self._broker.store.health)

    async def drain(self, request: Request) -> Response:
        arguments = request.query()
        stay = _stay(arguments["stay"]) if "stay" in arguments else None
        if not self._start_drain(stay=stay, retire=arguments.get("retire") == "true"):
            raise HttpError(409, "DRAINING")
        return EMPTY

    async def undrain(self, request: Request) -> Response:
        if not self._take_drain_back():
            raise HttpError(409, "DRAINED")
        return EMPTY

    async def metrics(self, request: Request) -> Response:
        slices = handler_slices()
        with self._calls.turn():  # a turn updates the broker's clock, which the ages are measured against
            snapshots = stats.topic_snapshots(self._broker, clients=False, ages_at=monotonic())
        topics = await slices.all_of(snapshots)
        metrics = nsqd_metrics(
            self._broker,
            topics,
            memory_now(),
            self._logs.lags(),
            waiting=len(self._logs.waiting),
            policy_error=self._policy_error,
            policy_is_copy=self._policy is not None and self._policy.content.is_copy,
        )
        body = await slices.joined(exposition_pieces([*metrics, *self._certificate_metrics()]))
        return Response(body=body, headers=((b"content-type", CONTENT_TYPE),))

    async def info(self, request: Request) -> Response:
        options = self._settings.options
        return json(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": self._node.hostname,
                "http_port": self._node.http_port,
                "tcp_port": self._node.tcp_port,
                "start_time": self._broker.start_time,
                "max_heartbeat_interval": options.max_heartbeat_interval,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
            | self._worker
        )

    @property
    def _worker(self) -> dict[str, int]:
        return {"worker": self._node.worker} if self._node.worker >= 0 else {}

    @property
    def _policy_error(self) -> str:
        return self._policy.error if self._policy is not None else ""

    async def remote(self, request: Request) -> Response:
        """Describe the copy of the data path in an object store. Another start asks this to see whether we are alive."""
        self._note_standby(request)
        remote = self._broker.store.disk().remote
        if remote is None:
            raise HttpError(404, "NO_REMOTE")
        requests: dict[str, dict[str, int]] = {}
        for (verb, outcome), count in sorted(remote.requests.items()):
            requests.setdefault(verb, {})[outcome] = count
        return json(
            {
                **self._remote_members(remote),
                "owner": remote.owner,
                "pid": remote.pid,
                "boot": remote.boot,
                "run": remote.run,
                "fault": remote.fault,
                "silent_seconds": round(remote.silent_seconds, 3),
                "recorded": remote.recorded,
                "confirmed": remote.confirmed,
                "requests": requests,
                "slots": remote.slots,
                "slot_bytes": remote.slot_bytes,
                "roots": remote.roots,
                "files": remote.files,
                "rate": remote.rate,
                "strict": remote.is_strict,
            }
        )

    def _note_standby(self, request: Request) -> None:
        """Note which standby has asked, if one has. Without rights it gets its answer from /readyz, so it asks there, too."""
        if (address := request.query().get("standby")) is not None:
            self._watchers.asked(address, monotonic())

    def _remote_members(self, remote: RemoteSnapshot) -> dict[str, object]:
        """Return the members that `/remote` and `/stats` have in common."""
        return {
            "state": remote.state,
            "store": remote.store,
            "name": remote.name,
            "refusal": remote.refusal,
            "behind_seconds": round(remote.behind_seconds, 3),
            "behind_bytes": remote.behind_bytes,
            "waiting_publishes": remote.waiting_publishes,
            "started": {"decision": remote.decision, "fetched": remote.fetched, "aside": remote.aside},
            "aside": remote.asides,
            "standby": self._settings.options.standby,
            "watched_by": self._watchers.addresses(monotonic()),
        }

    async def stats(self, request: Request) -> Response:
        query = request.query()
        slices = handler_slices()
        snapshot = await self._snapshot(query, slices)
        if request.is_limited:
            snapshot = only_about(query.get("topic", ""), snapshot)
        memory = memory_now() if truth(query, "include_mem") and not request.is_limited else None
        if query.get("format") == "json":
            more: dict[str, object] = {"draining": True} if self._is_draining() else {}
            if query.get("ages") == "true":  # NSQ's answer has no such member
                more["release"] = suite_version()
            more |= self._worker
            if not request.is_limited:
                more |= _policy_members(self._policy, ages=query.get("ages") == "true")
            disk = self._broker.store.disk()
            if disk.remote is not None and not request.is_limited:
                more["remote"] = self._remote_members(disk.remote)
            pieces = stats_json(snapshot, memory, version=NSQ_VERSION, more=more, ack_of=disk.ack_of)
            body = await slices.joined(pieces)
            return Response(body=body, headers=(JSON, V1))
        lines = stats_text(snapshot, memory, version=version_line("nsqd"), timestamp=time_ns())
        return text("\n".join([*await slices.all_of(lines), ""]))

    async def _snapshot(self, query: Mapping[str, str], slices: Slices) -> BrokerSnapshot:
        """Return the requested figures. Other tasks run between topics, so some are a moment older than others."""
        broker, topic = self._broker, query.get("topic", "")
        if topic and topic not in broker.topics:
            return stats.snapshot_of(broker, None, ())
        clients = truth(query, "include_clients")
        ages_at = monotonic() if query.get("ages") == "true" else None
        snapshots = stats.topic_snapshots(broker, topic, query.get("channel", ""), clients=clients, ages_at=ages_at)
        topics = await slices.all_of(snapshots)
        producers = await slices.all_of(stats.producer_snapshots(broker, topic)) if clients else ()
        return stats.snapshot_of(broker, topics, producers)


def _policy_members(policy: PolicyFile | None, *, ages: bool) -> dict[str, str | bool]:
    """Return the policy's members of `/stats`: the digest, which should be the same on all nodes, and any problems.

    If there is no policy file, the digest is empty, and only a request with `ages=true` gets it.
    """
    if policy is None:
        return {"policy_digest": ""} if ages else {}
    described: dict[str, str | bool] = {"policy_digest": policy.content.digest}
    if policy.error:
        described["policy_error"] = policy.error
    if policy.content.is_copy:
        described["policy_is_copy"] = True
    return described


def _stay(text: str) -> float:
    try:
        stay = parse_duration(text)
    except ValueError:
        stay = -1
    if stay < 0:
        raise HttpError(400, "INVALID_ARG_STAY")
    return seconds(stay)
