"""The HTTP API of a standby: it says that it is alive, that it isn't ready, and what it waits for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpApi, HttpError, Request, Response, json, plain
from nsqcommon.prometheus import CONTENT_TYPE, exposition_pieces
from nsqd.broker.store import RemoteState
from nsqd.http.access import OPEN, READ_NODE, GuardedRoute
from nsqd.http.quick import PING_OK
from nsqd.stats.prometheus import standby_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqd.broker.store import StandbySnapshot
    from nsqd.http.guard import Guard

log = logging.getLogger(__name__)

_REFUSAL: Final = HttpError(503, "STANDBY").response
_TLS_REQUIRED: Final = HttpError(403, "TLS_REQUIRED").response


class StandbyEndpoints:
    def __init__(
        self, snapshot: Callable[[], StandbySnapshot], requests: Callable[[], Mapping[tuple[str, str], int]]
    ) -> None:
        self._snapshot = snapshot
        self._requests = requests

    async def ping(self, request: Request) -> Response:
        """Return 200: the process is as it should be, and a probe that asks whether it lives must not have it killed."""
        return PING_OK

    async def refuse(self, request: Request) -> Response:
        return _REFUSAL

    async def ready(self, request: Request) -> Response:
        """Return 503. Other standbys tell by this text that we aren't the owner, if we won't answer /remote to them."""
        return plain(RemoteState.STANDBY.value, status=503)

    async def remote(self, request: Request) -> Response:
        it = self._snapshot()
        well_seconds_ago = None if it.well_seconds_ago is None else round(it.well_seconds_ago, 3)
        return json(
            {
                "state": RemoteState.STANDBY.value,
                "store": it.store,
                "name": it.name,
                "waiting_seconds": round(it.waiting_seconds, 3),
                "waits_for": it.waits_for,
                "owner": it.owner,
                "owner_address": it.owner_address,
                "owner_says": it.answer,
                "owner_well_seconds_ago": well_seconds_ago,
                # Not `run`, because that is how an owner is known.
                "chain": {"run": it.run, "slot": it.slot, "still_seconds": round(it.still_seconds, 3)},
            }
        )

    async def metrics(self, request: Request) -> Response:
        body = b"".join(exposition_pieces(standby_metrics(self._requests())))
        return Response(body=body, headers=((b"content-type", CONTENT_TYPE),))


def make_standby_app(
    snapshot: Callable[[], StandbySnapshot],
    requests: Callable[[], Mapping[tuple[str, str], int]],
    *,
    guard: Guard | None = None,
    only_probes: bool = False,
) -> HttpApi[GuardedRoute]:
    """Build the ASGI application. `only_probes`: refuse what says something of the node, because TLS is required."""
    it = StandbyEndpoints(snapshot, requests)
    routes = [
        GuardedRoute("GET", "/ping", it.ping, access=OPEN),
        GuardedRoute("GET", "/healthz", it.ping, access=OPEN, logged=False),
        GuardedRoute("GET", "/readyz", it.ready, access=OPEN, logged=False),
        GuardedRoute("GET", "/remote", it.remote, access=READ_NODE, logged=False),
        GuardedRoute("GET", "/metrics", it.metrics, access=READ_NODE, logged=False),
        # So that a publisher doesn't take our 404 for a wrong URL.
        *(GuardedRoute("POST", path, it.refuse, access=OPEN, logged=False) for path in ("/pub", "/mpub", "/hmpub")),
        *(GuardedRoute("GET", path, it.refuse, access=OPEN, logged=False) for path in ("/stats", "/info")),
    ]

    def check(request: Request, endpoint: GuardedRoute) -> Response | None:
        if only_probes and endpoint.access is not OPEN:
            return _TLS_REQUIRED
        return guard.check(request, endpoint) if guard is not None else None

    return HttpApi(routes, log=log, guard=check)
