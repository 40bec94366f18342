"""`/api/v2/*`: the snapshot as JSON, and actions, for scripts in pages and for programs.

Answers come from the last sample; with `?fresh=1` we poll the nodes first. Changes are POSTs, and their answers have
each node's result.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from nsqadmin.access import Right
from nsqadmin.actions.plan import Action, BadAction, Kind, checked, holders, plan
from nsqadmin.actions.undo import result_of
from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Activity,
    Snapshot,
    Span,
    channel_series,
    topic_series,
)
from nsqadmin.cluster.recording import encode, to_json
from nsqadmin.cluster.view import recorded, seen_by
from nsqadmin.http.app import Route
from nsqadmin.http.live import health_of, restricted
from nsqadmin.http.responses import caller_of, identity_of, json_answer, number_argument, object_of, require
from nsqadmin.http.undoing import undo
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.access import Identity
    from nsqadmin.diagnosis.incident import Open
    from nsqadmin.services import Services

_MOST_SERIES: Final = 500  # series in a saved snapshot
_MOST_ACTIVITY: Final = 2000
_MOST_INCIDENTS: Final = 1000


def routes(services: Services) -> list[Route]:
    questions, changes = _Questions(services), _Changes(services)
    return [
        Route("GET", "/api/v2/health", questions.health),
        Route("GET", "/api/v2/me", questions.me),
        Route("GET", "/api/v2/snapshot", questions.snapshot),
        Route("GET", "/api/v2/topics", questions.topics),
        Route("GET", "/api/v2/topics/{topic}", questions.topic),
        Route("GET", "/api/v2/topics/{topic}/{channel}", questions.channel),
        Route("GET", "/api/v2/nodes", questions.nodes),
        Route("GET", "/api/v2/diagnose", questions.diagnose),
        Route("GET", "/api/v2/diagnose/{topic}", questions.diagnose),
        Route("GET", "/api/v2/diagnose/{topic}/{channel}", questions.diagnose),
        Route("GET", "/api/v2/incidents", questions.incidents),
        Route("GET", "/api/v2/incidents/{key}", questions.incident),
        Route("GET", "/api/v2/series", questions.series),
        Route("GET", "/api/v2/activity", questions.activity),
        Route("POST", "/api/v2/plan", changes.plan),
        Route("POST", "/api/v2/actions", changes.execute),
        Route("POST", "/api/v2/undo", changes.undo),
    ]


class _Questions:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._view = services.view

    async def health(self, request: Request) -> Response:
        snapshot = seen_by(await self._snapshot(request), identity_of(request))
        return json_answer(
            {
                **health_of(snapshot, self._services.incidents, restricted(identity_of(request))),
                "index": snapshot.index,
                "taken_at": snapshot.taken_at,
                "interval": snapshot.interval,
                "totals": to_json(snapshot.totals),
                "unanswered": to_json(snapshot.unanswered),
                "silent": to_json(snapshot.silent),
            }
        )

    async def me(self, request: Request) -> Response:
        identity = identity_of(request)
        return json_answer(
            {
                "user": identity.user,
                "groups": list(identity.groups),
                "open": self._services.policy.is_open and not self._services.options.auth_file,
                "rights": {right.value: identity.why_not(right) or True for right in Right},
            }
        )

    async def snapshot(self, request: Request) -> Response:
        """Send the whole snapshot, as a file for `--snapshot`."""
        recording = recorded(self._view, _interesting_keys)
        identity = identity_of(request)
        seen = replace(
            recording,
            snapshot=seen_by(recording.snapshot, identity),
            series={key: series for key, series in recording.series.items() if _sees_series(identity, key)},
            activity=tuple(entry for entry in recording.activity if entry.is_for(identity.sees)),
        )
        return Response(
            encode(seen),
            headers={"content-disposition": 'attachment; filename="nsqadmin-snapshot.json"'},
            media_type="application/json",
        )

    async def topics(self, request: Request) -> Response:
        snapshot = seen_by(await self._snapshot(request), identity_of(request))
        return json_answer(
            {
                "taken_at": snapshot.taken_at,
                "silent": to_json(snapshot.silent),
                "topics": to_json(snapshot.topics),
            }
        )

    async def topic(self, request: Request) -> Response:
        name = str(request.path_params["topic"])
        require(request, Right.VIEW, name)
        topic = (await self._snapshot(request, name)).topic(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return json_answer(to_json(topic))

    async def channel(self, request: Request) -> Response:
        name = str(request.path_params["topic"])
        require(request, Right.VIEW, name)
        channel = (await self._snapshot(request, name)).channel(name, str(request.path_params["channel"]))
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return json_answer(to_json(channel))

    async def nodes(self, request: Request) -> Response:
        snapshot = seen_by(await self._snapshot(request), identity_of(request))
        return json_answer({"nodes": to_json(snapshot.nodes), "lookupds": to_json(snapshot.lookupds)})

    async def diagnose(self, request: Request) -> Response:
        """Send all findings, or those about a topic and its channels, or those about one channel."""
        identity = identity_of(request)
        topic, channel = (str(request.path_params.get(name, "")) for name in ("topic", "channel"))
        if topic:
            require(request, Right.VIEW, topic)
        snapshot = seen_by(await self._snapshot(request, topic), identity)
        if (topic and snapshot.topic(topic) is None) or (channel and snapshot.channel(topic, channel) is None):
            raise HttpError(404, "CHANNEL_NOT_FOUND" if snapshot.topic(topic) is not None else "TOPIC_NOT_FOUND")
        findings = [
            finding
            for finding in snapshot.findings
            if (not topic or finding.topic == topic) and (not channel or finding.channel == channel)
        ]
        return json_answer({"taken_at": snapshot.taken_at, "findings": to_json(findings)})

    async def incidents(self, request: Request) -> Response:
        """Send the incidents, worst first, without their findings: you find these at each incident's own address."""
        seen = self._services.incidents.seen_by(identity_of(request))
        return json_answer(
            {"taken_at": self._view.snapshot.taken_at, "incidents": [_incident(it) for it in seen[:_MOST_INCIDENTS]]}
        )

    async def incident(self, request: Request) -> Response:
        """Send one incident with its findings."""
        key = str(request.path_params["key"])
        seen = self._services.incidents.seen_by(identity_of(request))
        it = next((it for it in seen if it.key == key), None)
        if it is None:
            raise HttpError(404, "INCIDENT_NOT_FOUND")
        return json_answer({**_incident(it), "findings": to_json(it.incident.findings)})

    async def series(self, request: Request) -> Response:
        key = request.query_params.get("key", CLUSTER_SERIES)
        if not _sees_series(identity_of(request), key):
            raise HttpError(403, "FORBIDDEN")
        try:
            span = Span(request.query_params.get("span", Span.MINUTES))
        except ValueError:
            raise HttpError(400, "INVALID_ARG_SPAN", details={"reason": f"one of {', '.join(Span)}"}) from None
        series = self._view.series(key, span)
        if series is None:
            raise HttpError(404, "SERIES_NOT_FOUND")
        return json_answer({"key": key, "span": span.value, **to_json(series)})

    async def activity(self, request: Request) -> Response:
        """Send activity, newest first. Arguments: `kind=action|event`, `topic=`, `user=`, `format=ndjson`."""
        identity = identity_of(request)
        wanted = [entry for entry in self._view.activity() if _is_wanted(entry, request, identity)]
        wanted = wanted[: number_argument(request, "limit", 200, least=1, most=_MOST_ACTIVITY)]
        if request.query_params.get("format") == "ndjson":
            lines = "".join(json.dumps(to_json(entry), ensure_ascii=False) + "\n" for entry in wanted)
            return Response(lines, media_type="application/x-ndjson")
        return json_answer({"activity": to_json(wanted)})

    async def _snapshot(self, request: Request, topic: str = "") -> Snapshot:
        if request.query_params.get("fresh") == "1":
            return await self._view.refreshed(topic)
        if topic:
            self._view.look_at(topic)
        return self._view.snapshot


class _Changes:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def plan(self, request: Request) -> Response:
        """Send the consequences of the action, after polling all nodes."""
        action = await self._action(request)
        snapshot = await self._services.view.refreshed(action.topic)
        try:
            made = plan(snapshot, action)
        except BadAction as error:
            raise _refused(error) from error
        return json_answer(to_json(made))

    async def execute(self, request: Request) -> Response:
        """Carry out the action and send its receipt. The status is 200 even if some or all nodes failed."""
        action = await self._action(request)
        executor = self._services.executor
        if executor is None:
            raise HttpError(403, "FORBIDDEN")
        before = self._services.view.snapshot
        receipt = await executor.execute(action, caller_of(request), holders(before, action), before=before)
        return json_answer({**to_json(receipt), "result": receipt.result})

    async def undo(self, request: Request) -> Response:
        """Undo an action, and send each node's result. The status is 200 even if some or all nodes failed."""
        record_id = (await object_of(request)).get("undo")
        if not isinstance(record_id, str):
            raise HttpError(400, "INVALID_BODY", details={"reason": "undo: expected the id in a receipt"})
        _, rows = await undo(self._services, request, record_id)
        return json_answer({"result": result_of(rows), "nodes": to_json(rows)})

    async def _action(self, request: Request) -> Action:
        """Read the action from the body. Refuse it if the user lacks the right, or a node is unknown."""
        action = action_of(await object_of(request))
        identity = identity_of(request)
        if reason := identity.why_not(action.right, action.topic):
            if self._services.executor is not None:
                self._services.executor.note_refusal(action, caller_of(request), reason)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        for node in action.nodes:
            if self._services.view.snapshot.node(node) is None:
                raise HttpError(404, "NODE_NOT_FOUND", details={"reason": node})
        return action


def _incident(it: Open) -> dict[str, Any]:
    incident = it.incident
    return {
        "key": it.key,
        "severity": incident.severity.value,
        "state": it.state,
        "cause": incident.cause.kind.value,
        "family": incident.cause.family.value,
        "rule": incident.leading.rule,
        "subject": incident.subject,
        "verdict": incident.verdict,
        "is_inferred": incident.is_inferred,
        "is_growing": it.is_growing,
        "is_ending": incident.is_ending,
        "is_recurring": incident.is_recurring,
        "impact": round(incident.weight, 1),
        "began": it.began,
        "began_before": it.began_before,
        "returned": it.returned,
        "now": to_json(incident.numbers),
        "then": to_json(it.then),
        "peak": it.peak,
        "turns": to_json(it.turns),
        "changes": to_json(it.changes),
        "acknowledged": to_json(it.acknowledged),
        "muted": to_json(it.muted),
    }


def action_of(body: dict[str, Any]) -> Action:
    """Read an action such as `{"kind":"pause_channel","topic":"t","channel":"c","nodes":["n1:4151"]}`. Raise 400."""
    try:
        kind = Kind(body.get("kind", ""))
    except ValueError:
        raise HttpError(400, "INVALID_ACTION", details={"reason": f"kind: one of {', '.join(Kind)}"}) from None
    words = {name: body.get(name) or "" for name in ("topic", "channel", "place", "reader", "into")}
    nodes = body.get("nodes") or []
    if not all(isinstance(word, str) for word in words.values()):
        raise HttpError(400, "INVALID_BODY", details={"reason": "topic, channel, place, reader and into are strings"})
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise HttpError(400, "INVALID_BODY", details={"reason": "nodes is a list of strings"})
    try:
        return checked(Action(kind=kind, nodes=tuple(nodes), **words))
    except BadAction as error:
        raise _refused(error) from error


def _refused(error: BadAction) -> HttpError:
    code = str(error)
    return HttpError(404 if code.endswith("NOT_FOUND") else 400, code)


# Visibility


def _sees_series(identity: Identity, key: str) -> bool:
    word, _, name = key.partition("@")[0].partition(":")
    if word in ("topic", "channel"):
        return identity.sees(name.partition("/")[0])
    return identity.may(Right.VIEW)


def _is_wanted(entry: Activity, request: Request, identity: Identity) -> bool:
    wanted = request.query_params
    if not entry.is_for(identity.sees):
        return False
    if (kind := wanted.get("kind")) and (kind == "action") != entry.is_action:
        return False
    return all(
        not wanted.get(name) or wanted[name] == getattr(entry, name) for name in ("topic", "channel", "user", "what")
    )


def _interesting_keys(snapshot: Snapshot) -> list[str]:
    """Return the keys of the cluster, its nodes, and topics with their channels: troubled and big ones first."""
    keys = [CLUSTER_SERIES, *(f"node:{node.address}" for node in snapshot.nodes)]
    wrong = {finding.topic for finding in snapshot.findings if finding.topic}
    ordered = sorted(snapshot.topics, key=lambda topic: (topic.name not in wrong, -topic.total_depth))
    for topic in ordered:
        if len(keys) >= _MOST_SERIES:
            break
        keys.append(topic_series(topic.name))
        keys += [channel_series(topic.name, channel.name) for channel in topic.channels]
    return keys
