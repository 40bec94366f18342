"""The common parts of the tabs of a channel's buried and deferred messages: rows, and the link to the next page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.parts.bodies import Marks, ShownMessage, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.jobs import QueuedJob
    from nsqadmin.messages.lists import ListedMessage, ListPage, Summary
    from nsqadmin.parts.links import Links

ADDRESS: Final = {"buried": "sequence", "deferred": "place"}  # the argument of /buried and /deferred for the position


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    one: ListedMessage
    body: ShownMessage | None  # None: unavailable
    link: str
    key: str = ""  # its name in `?open=`


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionShown:
    """The content of the tabs of both kinds."""

    not_possible: str = ""  # why nothing can be shown; empty if something can
    summary: Summary[Any] | None = None
    rows: tuple[SelectionRow, ...] = ()
    page: ListPage[Any] | None = None
    node: str = ""
    limit: int = 0
    wrong: str = ""  # why the address of the page is invalid
    go_on: str = ""
    is_first: bool = True

    @property
    def is_masked(self) -> bool:
        return any(it.one.message is not None and it.one.message.is_masked for it in self.rows)

    @property
    def jobs(self) -> Iterator[QueuedJob | None]:
        return (it.one.message.job for it in self.rows if it.one.message is not None)


def rows_of(
    kind: str, links: Links, channel: Channel, page: ListPage[Any], marks: Marks | None = None
) -> tuple[SelectionRow, ...]:
    """Return the rows of a page, with the hits of a search marked."""

    def row(one: ListedMessage) -> SelectionRow:
        named = {"topic": channel.topic, "channel": channel.name, "node": one.node, ADDRESS[kind]: one.place}
        body = shown(one.message, marks=marks) if one.message is not None else None
        return SelectionRow(one=one, body=body, link=links.to(f"/{kind}", **named), key=f"{one.place}@{one.node}")

    return tuple(row(it) for it in page.lines)
