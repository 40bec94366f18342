"""Renders pages: turns a template into an answer, with the parts shared by all pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response

from nsqadmin.actions.taking_back import is_light
from nsqadmin.cluster.model import Activity, Finding, Lookupd, Severity, Snapshot
from nsqadmin.cluster.view import seen_by
from nsqadmin.diagnosis.incident_book import in_view
from nsqadmin.http.responses import identity_of, text_answer
from nsqadmin.parts import rendering
from nsqadmin.parts.glossary import GLOSSARY
from nsqadmin.parts.graphite import TIMEFRAMES, Graphite
from nsqadmin.parts.links import Links
from nsqadmin.parts.page_cache import PageCache
from nsqadmin.parts.rights import ACTION_WORDS, why_not
from nsqadmin.parts.silence import is_all_unknown, parts_of, tally, unknown_part, unless_unknown
from nsqadmin.parts.status import HEALTH, NodeStates, Standing, State
from nsqadmin.parts.tables import Sorting, number_columns, page_number, part_of
from nsqcommon.options import seconds
from nsqcommon.passwords import without_credentials
from nsqcommon.version import NSQ_VERSION, suite_version

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.access import Identity
    from nsqadmin.services import Services

_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A box above a page's content."""

    kind: str
    text: str
    advice: str = ""
    raw: str = ""


class Painter:
    """Renders pages and serves static files."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.links = Links(services.options.prefix)
        self._static = rendering.Static(services.options.dev_static_dir)
        self._templates = rendering.environment(self.links, self._static)
        self._is_still = bool(services.options.snapshot)
        self.cached = PageCache(services)

    async def picture(self, request: Request, topic: str = "") -> Snapshot:
        """Return the part of the newest snapshot that the user may see.

        All nodes are asked first if the address has `fresh=1`, or somebody has just changed something with this nsqadmin.
        """
        is_fresh = request.query_params.get("fresh") == "1"
        view = self._services.view
        snapshot = await view.refreshed(topic) if is_fresh else await view.after_actions()
        return seen_by(snapshot, identity_of(request))

    def page(
        self,
        request: Request,
        template: str,
        snapshot: Snapshot,
        *,
        current: str = "",
        scope: str = "",
        status: int = 200,
        notices: Sequence[Notice] = (),
        **shown: Any,
    ) -> Response:
        identity = identity_of(request)
        now = snapshot.taken_at if self._is_still else time.time()
        attention, _, _ = in_view(self._services.incidents.seen_by(identity))
        standing = Standing(snapshot.findings)
        nodes = NodeStates(snapshot, standing)
        context = {
            "snapshot": snapshot,
            "standing": standing,
            "now": now,
            "current": current,
            "scope": scope,
            "external": self._services.options.external_url.rstrip("/"),
            "notices": notices,
            "is_still": self._is_still,
            "version": f"nsqadmin {suite_version()} (NSQ {NSQ_VERSION})",
            "trouble_count": sum(it.incident.severity is Severity.PROBLEM for it in attention),
            "said": {it.incident.subject for it in attention} if scope == "overview" else (),
            "who": self._who(identity),
            "who_title": self._who_title(identity),
            "can_log_out": identity.has_session,
            "glossary": GLOSSARY,
            "action_words": ACTION_WORDS,
            "is_light": is_light,
            "may_not": partial(why_not, identity),
            "node_state": nodes.whole,
            "own_node_state": nodes.own,
            "lookupd_state": _lookupd_state,
            "object_of": _object_of,
            "object_of_activity": _object_of_activity,
            "graphite": (),
            "spark_of": None,  # draws the sparkline of a row, on pages that have them
            "silent_parts": parts_of,
            "unless_unknown": unless_unknown,
            "unknown_part": unknown_part,
            "tally": partial(tally, snapshot),
            "is_all_unknown": is_all_unknown,
            "opened": None,
            "told_of": "",  # a node that the page itself is about, so that no banner is needed
            "sorting": partial(Sorting, request),
            "page_number": page_number(request),
            "part_of": part_of,
            "number_columns": number_columns,
        }
        html = self._templates.get_template(template).render({**context, **shown})
        return HTMLResponse(html.encode("utf-8", "replace"), status)  # nodes may send names that aren't valid text

    def bare_page(self, template: str, *, status: int, **shown: Any) -> Response:
        """Render a page for people who aren't logged in: without a user, and without anything of the cluster."""
        return HTMLResponse(self._templates.get_template(template).render(**shown), status)

    def fragment(self, template: str, **shown: Any) -> str:
        """Render a part of a page that scripts insert."""
        return self._templates.get_template(template).render(now=time.time(), **{"opened": None, **shown})

    async def asset(self, request: Request) -> Response:
        return self._file(request.path_params["asset"])

    async def favicon(self, request: Request) -> Response:
        """Answer browsers that request an icon for plain text or JSON, where a page can't name one."""
        return self._file("icon.svg")

    def _file(self, asset: str) -> Response:
        found = self._static.find(asset)
        if found is None:
            return text_answer("NOT_FOUND", status=404, v1=False)
        content, media_type, is_for_ever = found
        keep = _FOR_EVER if is_for_ever else "no-cache"
        return Response(content, 200, {"cache-control": keep}, media_type)

    def _who(self, identity: Identity) -> str:
        if identity.user:
            return identity.user
        return "open access" if self._services.policy.is_open and not self._is_still else ""

    def _who_title(self, identity: Identity) -> str:
        if not identity.user:
            return "No rights are configured: everyone may do everything"
        return f"{identity.user}. Roles: " + (", ".join(role.name for role in identity.roles) or "none")


def graphite_of(services: Services) -> Graphite | None:
    """Return graphite's image links, if configured. /config may change the options, so we read them each time."""
    options = services.options
    if not options.graphite_url:
        return None
    return Graphite(
        url=options.prefix if options.proxy_graphite else without_credentials(options.graphite_url).rstrip("/"),
        statsd_prefix=options.statsd_prefix,
        counter_format=options.statsd_counter_format,
        gauge_format=options.statsd_gauge_format,
        interval=seconds(options.statsd_interval),
    )


def timeframe_of(request: Request) -> str:
    return word_of(request, "t", TIMEFRAMES)


def word_of(request: Request, name: str, known: Sequence[str]) -> str:
    """Return the argument if it is one of the known words, otherwise the first of them."""
    word = request.query_params.get(name, "")
    return word if word in known else known[0]


def _object_of(finding: Finding) -> str:
    if finding.topic:
        return f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic
    return finding.node


def _object_of_activity(entry: Activity) -> str:
    if entry.topic:
        return f"{entry.topic}/{entry.channel}" if entry.channel else entry.topic
    return ", ".join(entry.nodes)


def _lookupd_state(lookupd: Lookupd) -> State:
    return HEALTH[lookupd.health]
