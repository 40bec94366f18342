"""nsqd's HTTP API: the table of all endpoints, NSQ's and ours. The handlers for each noun are in a separate module."""

from __future__ import annotations

import logging
from time import monotonic, time_ns
from typing import TYPE_CHECKING, NamedTuple

from nsqcommon.http_api import JSON, V1, HttpApi, Response, Route
from nsqd.http.access import (
    ADMIN_TOPIC,
    CONSUME,
    OPEN,
    OPERATE_AND_PUBLISH,
    OPERATE_NODE,
    OPERATE_TOPIC,
    PUBLISH,
    PUBLISH_OR_OPERATE,
    READ_NODE,
    READ_TOPIC,
    GuardedRoute,
)
from nsqd.http.backlog import BacklogEndpoints
from nsqd.http.bodies import BodyReader
from nsqd.http.buried import BuriedEndpoints
from nsqd.http.calls import Calls
from nsqd.http.changes import Changes
from nsqd.http.channels import ChannelEndpoints
from nsqd.http.config import ConfigEndpoints
from nsqd.http.consuming import ConsumeEndpoints
from nsqd.http.debug import debug_routes
from nsqd.http.edit import EditEndpoints
from nsqd.http.finding import FindEndpoint
from nsqd.http.groups import GroupEndpoints
from nsqd.http.history import HistoryEndpoints
from nsqd.http.in_flight import InFlightEndpoint
from nsqd.http.listing import Listing
from nsqd.http.message_search import MessageSearch
from nsqd.http.messages import MessageEndpoints
from nsqd.http.node import LogFigures, NodeEndpoints
from nsqd.http.policy import PolicyEndpoints
from nsqd.http.pub import PubEndpoints
from nsqd.http.readers import ReaderEndpoints, lags
from nsqd.http.topics import TopicEndpoints
from nsqd.readers import Readers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nsqcommon.cors import Cors
    from nsqcommon.http_api import Attend, Request
    from nsqcommon.prometheus import Metric
    from nsqcommon.same_site import SameSite
    from nsqcommon.wire.unfinished import UnfinishedBodies
    from nsqd.broker.broker import Broker
    from nsqd.http.calls import Bridge, DurableTurn
    from nsqd.http.config import ConfigSettings
    from nsqd.http.guard import Guard
    from nsqd.http.history import HistoryReads
    from nsqd.http.leasing import Leasing
    from nsqd.http.node import NodeInfo, StartDrain
    from nsqd.http.publishing import Publishing
    from nsqd.policy.policy_file import PolicyFile

log = logging.getLogger(__name__)


def make_app(
    broker: Broker,
    turn: DurableTurn,
    settings: ConfigSettings,
    publishing: Publishing,
    node: NodeInfo,
    *,
    start_drain: StartDrain,
    take_drain_back: Callable[[], bool],
    is_draining: Callable[[], bool],
    run_trio: Bridge,
    reading: HistoryReads,
    leasing: Leasing,
    readers: Readers | None = None,
    policy: PolicyFile | None = None,
    changes: Changes | None = None,
    linger: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
    attend: Attend | None = None,
    guard: Guard | None = None,
    same_site: SameSite | None = None,
    cors: Cors | None = None,
    unfinished: UnfinishedBodies | None = None,
    certificate_metrics: Callable[[], Sequence[Metric]] = lambda: (),
) -> HttpApi[GuardedRoute]:
    """Build the ASGI application. `run_trio`, `linger` and `attend` come from `nsqcommon.web`; tests pass their own.

    The table of routes is also the table of rights (nsqd/http/access.py). docs/how-to/rights.md shows it.
    """
    calls = Calls(broker, turn, run_trio)
    readers = readers or Readers()
    history = HistoryEndpoints(broker, reading, readers, monotonic)
    bodies, search = BodyReader(reading, monotonic), MessageSearch(broker, reading)
    figures = LogFigures(reading.waiting, lambda: lags(readers, reading.history))
    handlers = _Handlers(
        node=NodeEndpoints(
            calls, settings, node, start_drain, take_drain_back, is_draining, figures, policy, certificate_metrics
        ),
        pub=PubEndpoints(calls, publishing),
        consuming=ConsumeEndpoints(calls, leasing),
        history=history,
        readers=ReaderEndpoints(readers, lambda topic, log_id: history.find(topic, {"log": log_id}), time_ns),
        topics=TopicEndpoints(calls),
        channels=ChannelEndpoints(calls, reading),
        backlogs=BacklogEndpoints(calls, history.find),
        buried=BuriedEndpoints(calls, reading, monotonic),
        in_flight=InFlightEndpoint(calls, Listing(reading, history.find), bodies, monotonic),
        groups=GroupEndpoints(calls, reading, publishing.delay_ms, monotonic),
        messages=MessageEndpoints(
            calls, Listing(reading, history.find), bodies, search, publishing.delay_ms, history.find, node=node.node
        ),
        finding=FindEndpoint(broker, reading),
        edits=EditEndpoints(calls, publishing, bodies, search, history.find),
        config=ConfigEndpoints(settings, max_message=publishing.limits.max_message),
        policy=PolicyEndpoints(policy),
        changes=changes or Changes(time_ns),
    )
    routes = [handlers.changes.record_calls(endpoint) for endpoint in _routes(handlers, debug_routes(run_trio))]
    check = _checks(same_site, guard)
    return HttpApi(routes, log=log, linger=linger, attend=attend, guard=check, cors=cors, unfinished=unfinished)


def _checks(same_site: SameSite | None, guard: Guard | None) -> Callable[[Request, GuardedRoute], Response | None]:
    def check(request: Request, endpoint: GuardedRoute) -> Response | None:
        refusal = same_site.refusal(request, endpoint) if same_site is not None else None
        if refusal is None and guard is not None:
            refusal = guard.check(request, endpoint)
        return refusal

    return check


class _Handlers(NamedTuple):
    node: NodeEndpoints
    pub: PubEndpoints
    consuming: ConsumeEndpoints
    history: HistoryEndpoints
    readers: ReaderEndpoints
    topics: TopicEndpoints
    channels: ChannelEndpoints
    backlogs: BacklogEndpoints
    buried: BuriedEndpoints
    in_flight: InFlightEndpoint
    groups: GroupEndpoints
    messages: MessageEndpoints
    finding: FindEndpoint
    edits: EditEndpoints
    config: ConfigEndpoints
    policy: PolicyEndpoints
    changes: Changes


def _routes(it: _Handlers, debug: Iterable[GuardedRoute]) -> list[GuardedRoute]:
    return [
        GuardedRoute("GET", "/ping", it.node.ping, access=OPEN),
        GuardedRoute("GET", "/info", it.node.info, access=READ_NODE),
        GuardedRoute("GET", "/stats", it.node.stats, access=READ_TOPIC),
        GuardedRoute("POST", "/pub", it.pub.pub, access=PUBLISH, logged=False),
        GuardedRoute("POST", "/mpub", it.pub.mpub, access=PUBLISH, logged=False),
        GuardedRoute("POST", "/hmpub", it.pub.hmpub, access=PUBLISH, logged=False),
        # Not logged: a consumer sends these all the time.
        GuardedRoute("POST", "/sub", it.consuming.poll, access=CONSUME, logged=False),
        GuardedRoute("GET", "/sub", it.consuming.stream, access=CONSUME, logged=False),
        GuardedRoute("POST", "/fin", it.consuming.finish, access=CONSUME, logged=False),
        GuardedRoute("POST", "/req", it.consuming.requeue, access=CONSUME, logged=False),
        GuardedRoute("POST", "/touch", it.consuming.touch, access=CONSUME, logged=False),
        GuardedRoute("POST", "/bury", it.consuming.bury, access=CONSUME, logged=False),
        GuardedRoute("GET", "/topic/log", it.history.log, access=READ_TOPIC),
        GuardedRoute("GET", "/topic/read", it.history.read, access=READ_TOPIC),
        # Not logged: a running reader reports its position at least once a minute.
        GuardedRoute("POST", "/topic/reader", it.readers.report, access=READ_TOPIC, logged=False),
        GuardedRoute("POST", "/topic/reader/delete", it.readers.forget, access=OPERATE_TOPIC, change="forget_reader"),
        GuardedRoute("POST", "/topic/create", it.topics.create, access=ADMIN_TOPIC, change="create_topic"),
        GuardedRoute("POST", "/topic/delete", it.topics.delete, access=ADMIN_TOPIC, change="delete_topic"),
        GuardedRoute("POST", "/topic/empty", it.topics.empty, access=ADMIN_TOPIC, change="empty_topic"),
        GuardedRoute("POST", "/topic/pause", it.topics.pause, access=OPERATE_TOPIC, change="pause_topic"),
        GuardedRoute("POST", "/topic/unpause", it.topics.unpause, access=OPERATE_TOPIC, change="unpause_topic"),
        GuardedRoute("POST", "/channel/create", it.channels.create, access=ADMIN_TOPIC, change="create_channel"),
        GuardedRoute("POST", "/channel/delete", it.channels.delete, access=ADMIN_TOPIC, change="delete_channel"),
        GuardedRoute("POST", "/channel/empty", it.channels.empty, access=ADMIN_TOPIC, change="empty_channel"),
        GuardedRoute("POST", "/channel/seek", it.channels.seek, access=OPERATE_TOPIC, change="seek_channel"),
        GuardedRoute("GET", "/channel/position", it.channels.position, access=READ_TOPIC),
        GuardedRoute("GET", "/channel/state", it.backlogs.state, access=READ_TOPIC),
        GuardedRoute("POST", "/channel/restore", it.backlogs.restore, access=ADMIN_TOPIC, change="restore_channel"),
        GuardedRoute("POST", "/channel/redeliver", it.backlogs.redeliver, access=OPERATE_TOPIC, change="redeliver"),
        GuardedRoute("GET", "/channel/buried", it.buried.show, access=READ_TOPIC),
        GuardedRoute("GET", "/channel/jobs", it.buried.jobs, access=READ_TOPIC, logged=False),
        GuardedRoute("POST", "/channel/kick", it.buried.kick, access=OPERATE_TOPIC, change="kick"),
        GuardedRoute("POST", "/channel/discard", it.buried.discard, access=ADMIN_TOPIC, change="discard"),
        GuardedRoute("POST", "/channel/kick/undo", it.buried.undo_kick, access=OPERATE_TOPIC, change="undo_kick"),
        GuardedRoute("POST", "/channel/jobs/stop", it.buried.stop_job, access=OPERATE_TOPIC, change="stop_job"),
        GuardedRoute("GET", "/channel/inflight", it.in_flight.show, access=READ_TOPIC),
        GuardedRoute("POST", "/channel/edit", it.edits.edit, access=OPERATE_AND_PUBLISH, change="edit"),
        GuardedRoute("GET", "/channel/groups", it.groups.show, access=READ_TOPIC),
        GuardedRoute("POST", "/channel/bury", it.groups.bury, access=OPERATE_TOPIC, change="bury_group"),
        GuardedRoute("POST", "/channel/cancel", it.groups.cancel, access=OPERATE_TOPIC, change="cancel_group"),
        GuardedRoute("POST", "/channel/due", it.groups.due, access=OPERATE_TOPIC, change="move_group"),
        GuardedRoute("GET", "/channel/deferred", it.messages.deferred, access=READ_TOPIC),
        GuardedRoute("GET", "/message", it.finding.find, access=READ_TOPIC),
        GuardedRoute("POST", "/message/cancel", it.messages.cancel, access=PUBLISH_OR_OPERATE, change="cancel"),
        GuardedRoute("POST", "/message/due", it.messages.due, access=PUBLISH_OR_OPERATE, change="due"),
        GuardedRoute("POST", "/channel/pause", it.channels.pause, access=OPERATE_TOPIC, change="pause_channel"),
        GuardedRoute("POST", "/channel/unpause", it.channels.unpause, access=OPERATE_TOPIC, change="unpause_channel"),
        GuardedRoute("GET", "/config/policy", it.policy.show, access=READ_TOPIC),
        GuardedRoute("GET", "/config/{option}", it.config.get_option, access=READ_NODE),
        GuardedRoute("PUT", "/config/{option}", it.config.put_option, access=OPERATE_NODE, change="set_option"),
        *debug,
        GuardedRoute("GET", "/metrics", it.node.metrics, access=READ_NODE, logged=False),
        GuardedRoute("GET", "/remote", it.node.remote, access=READ_NODE, logged=False),
        GuardedRoute("GET", "/healthz", it.node.ping, access=OPEN, logged=False),
        GuardedRoute("GET", "/readyz", it.node.ready, access=OPEN, logged=False),
        GuardedRoute("GET", "/changes", it.changes.show, access=READ_TOPIC, logged=False),
        GuardedRoute("POST", "/drain", it.node.drain, access=OPERATE_NODE, change="drain"),
        GuardedRoute("POST", "/undrain", it.node.undrain, access=OPERATE_NODE, change="undrain"),
    ]


def refuse_plain(https_port: int) -> HttpApi[Route]:
    """Build the application that answers plain HTTP with 403 where TLS is required.

    We keep the spaces in NSQ's handwritten JSON, because clients parse it.
    """
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    return HttpApi((), log=log, always=Response(403, body, (JSON, V1)))
