"""The form that creates a topic or a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Kind
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.plan import Action
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.painter import Painter

CREATIONS: Final = (Kind.CREATE_TOPIC, Kind.CREATE_CHANNEL)
Values = Mapping[str, Sequence[str]]


def create_form(
    painter: Painter,
    request: Request,
    snapshot: Snapshot,
    word: str,
    problem: str,
    given: Action | None = None,
    *,
    status: int = 200,
) -> Response:
    if word not in ("create", *CREATIONS):
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return painter.page(request, "create.html", snapshot, current="Lookup", status=status, problem=problem, given=given)


def with_chosen_nodes(snapshot: Snapshot, values: Values) -> Values:
    """Return the form with its nodes listed, if it only says `on=all` (all that answer) or `on=none`."""
    on = next(iter(values.get("on", ())), "")
    if on == "all":
        return {
            **values,
            "node": [node.address for node in snapshot.nodes if node.is_reachable and not node.is_standby],
        }
    return {**values, "node": []} if on == "none" else values
