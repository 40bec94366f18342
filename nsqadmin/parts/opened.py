"""One message with its body: on its own page, or opened beside a table, which `?open=` in the table's address names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nsqadmin.access import Right
from nsqadmin.messages.filters import BadFilter, Filter, parse_filter
from nsqadmin.messages.reading import ANOTHER_LOG
from nsqadmin.parts.bodies import FORMS, ShownMessage, shown
from nsqadmin.parts.messages import NO_CLUSTER, asked_of, no_replay_of, shown_as
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.selection_tab import ADDRESS

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel, Snapshot
    from nsqadmin.messages.lists import ListedMessage
    from nsqadmin.messages.selections import Selections
    from nsqadmin.parts.links import Links
    from nsqadmin.services import Services

_GONE: Final = {
    "buried": "It is not buried any more.",
    "deferred": "It is not deferred any more, or is due at another time now.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A message, or why it cannot be shown."""

    topic: str
    channel: str
    problem: str = ""  # why it cannot be shown; empty if it can
    kind: str = ""  # buried or deferred; empty: from the topic's history
    one: ListedMessage | None = None  # of a list
    shown: ShownMessage | None = None  # None: its body cannot be read
    form: str = ""
    forms: tuple[tuple[str, str], ...] = ()  # how to show the body, each with a link
    href: str = ""  # its own page
    bytes: str = ""  # the body as it was published; empty: the user may not see it, or it cannot be read
    no_replay: str = ""
    key: str = ""  # its name in `?open=`
    close: str = ""  # the table without it


async def of_history(
    services: Services, links: Links, request: Request, snapshot: Snapshot, identity: Identity, **named: str
) -> Opened:
    """Return the message at `sequence` in the log of `topic` on `node`. `log` is the log's id, if it is known."""
    topic, node, sequence, log = (named.get(name, "") for name in ("topic", "node", "sequence", "log"))
    asked = replace(asked_of(request), channel=named.get("channel", ""))
    opened = Opened(topic=topic, channel=asked.channel)
    problem, page = "No such message", None
    if services.messages is None:
        problem = NO_CLUSTER.capitalize()
    elif snapshot.topic(topic) is not None and snapshot.node(node) is not None and _is_sequence(sequence):
        page = await services.messages.read(topic, identity, node=node, place=sequence, limit=1)
        problem = next((it.reason for it in page.logs if it.reason), problem)
        if any((log or it.log) != it.log for it in page.logs if it.log):
            problem, page = ANOTHER_LOG, None
    if page is None or not page.messages or page.messages[0].sequence != int(sequence):
        where = f"{sequence[:20]} of {topic or 'no topic'} on {node or 'no node'}"
        return replace(opened, problem=f"{problem}: {where}.")
    try:
        wanted = parse_filter(asked.wanted)
    except BadFilter:
        wanted = Filter()
    (one,) = shown_as(page.messages, asked, wanted)
    own = {"topic": topic, "node": node, "sequence": sequence, "log": page.messages[0].log or log}
    here = {**own, "filter": asked.wanted, "channel": asked.channel}
    return replace(
        opened,
        shown=one,
        form=asked.form,
        forms=tuple((form, links.to("/message", **here, **{"as": form})) for form in FORMS),
        href=links.to("/message", **own),
        bytes=links.body(topic, node, int(sequence), one.message.log) if identity.may(Right.PAYLOAD, topic) else "",
        no_replay=no_replay_of(identity, topic),
    )


async def of_list(
    services: Services, links: Links, request: Request, channel: Channel, identity: Identity, kind: str, **named: str
) -> Opened:
    """Return the buried or deferred message at this place of the node's list."""
    node, place = named["node"], named[ADDRESS[kind]]
    opened = Opened(topic=channel.topic, channel=channel.name, kind=kind)
    if services.messages is None:
        return replace(opened, problem=f"{NO_CLUSTER.capitalize()}.")
    selections: Selections[Any, Any] = services.messages.buried if kind == "buried" else services.messages.deferred
    try:
        page = await selections.one(channel, identity, node, place)
    except ValueError:
        return replace(opened, problem="This address names no message.")
    one = next(iter(page.lines), None)
    if one is None:
        problem = next((f"{at}: {why}." for at, why in page.missing), _GONE[kind])
        return replace(opened, problem=problem)
    form = word_of(request, "as", FORMS)
    own = {"topic": channel.topic, "channel": channel.name, "node": node, ADDRESS[kind]: place}
    return replace(
        opened,
        one=one,
        shown=shown(one.message, form) if one.message is not None else None,
        form=form,
        forms=tuple((it, links.to(f"/{kind}", **own, **{"as": it})) for it in FORMS),
        href=links.to(f"/{kind}", **own),
        bytes=links.body(channel.topic, node, one.sequence, one.message.log)
        if one.message is not None and one.message.sequence is not None and identity.may(Right.PAYLOAD, channel.topic)
        else "",
    )


async def beside(
    services: Services,
    links: Links,
    request: Request,
    snapshot: Snapshot,
    identity: Identity,
    topic: str,
    channel: Channel | None = None,
    *,
    kind: str = "",
) -> Opened | None:
    """Return the message that `?open=` names, `place@node` or `sequence@node@log`; None without it."""
    key = request.query_params.get("open", "")
    if not key:
        return None
    place, node, log = (*key.split("@"), "", "")[:3]
    if kind and channel is not None:
        opened = await of_list(services, links, request, channel, identity, kind, node=node, **{ADDRESS[kind]: place})
    else:
        came_from = channel.name if channel is not None else request.query_params.get("channel", "")
        opened = await of_history(
            services, links, request, snapshot, identity,
            topic=topic, node=node, sequence=place, log=log, channel=came_from,
        )  # fmt: skip
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in ("open", "fresh")]
    path = links.channel(topic, channel.name) if channel is not None else links.topic(topic)
    return replace(opened, key=key, close=f"{path}?{urlencode(kept)}")


def _is_sequence(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
