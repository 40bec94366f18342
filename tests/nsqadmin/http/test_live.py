"""Live updates: what each viewer of a page gets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from nsqadmin.access import Identity, Right, Role
from nsqadmin.diagnosis.incident import Counts
from nsqadmin.http import live
from nsqadmin.http.event_stream import event
from nsqadmin.http.live import Hub, Viewer
from nsqadmin.http.live_cells import cells_of
from tests.support.picture import channel, channel_node, snapshot, topic

if TYPE_CHECKING:
    import pytest

    from nsqadmin.cluster.model import Snapshot

ALL = Identity(roles=(Role(name="admin", can=frozenset(Right)),))


class NoIncidents:
    def counts(self, user: Identity | None = None) -> Counts:
        return Counts(0, 0, 0, 0)


def cluster(**depths: int) -> Snapshot:
    return snapshot(
        *(topic(channel(channel_node(depth=depth), topic=name), name=name) for name, depth in depths.items())
    )


@dataclass
class World:
    snapshot: Snapshot
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(cast("Any", self), cast("Any", NoIncidents()))

    def viewer(self, *only: str) -> Viewer:
        viewer = Viewer("topics", ALL, frozenset(only))
        self.hub.join(viewer)
        return viewer

    def opened(self, viewer: Viewer) -> dict[str, Any]:
        """Return the depths that a viewer gets first, or after it was too slow."""
        viewer.is_behind = False
        return depths_in(self.hub.whole(viewer))

    def sample(self, **depths: int) -> None:
        self.snapshot = replace(cluster(**depths), index=self.snapshot.index + 1)
        self.hub.send_snapshot(self.snapshot)


def depths_in(*events: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for it in b"".join(events).decode().split("\n\n"):
        if it.startswith("event: cells"):
            found |= json.loads(it.partition("data: ")[2])["set"]
    return {key.split("/")[1]: value for key, value in found.items() if key.endswith("/c/depth")}


def got(viewer: Viewer) -> dict[str, Any]:
    events = [*viewer._events]
    viewer._events.clear()
    return depths_in(*events)


def test_each_viewer_gets_the_rows_that_it_has_whoever_comes_and_goes() -> None:
    world = World(cluster(a=1, b=2, c=3))
    first, second = world.viewer("a"), world.viewer("b", "c")
    assert world.opened(first) == {"a": 1}
    assert world.opened(second) == {"b": 2, "c": 3}
    world.sample(a=4, b=2, c=5)
    assert (got(first), got(second)) == ({"a": 4}, {"c": 5})
    everything = world.viewer()
    assert world.opened(everything) == {"a": 4, "b": 2, "c": 5}
    world.sample(a=6, c=5)
    assert (got(first), got(second), got(everything)) == ({"a": 6}, {"b": None}, {"a": 6, "b": None})
    world.hub.leave(everything)
    world.sample(a=7, c=8)
    assert (got(first), got(second)) == ({"a": 7}, {"c": 8})
    world.hub.leave(second)
    world.sample(a=7, c=9)
    again = world.viewer("c")
    assert world.opened(again) == {"c": 9}
    world.sample(a=8, c=10)
    assert (got(first), got(again)) == ({"a": 8}, {"c": 10})


def test_who_opens_a_page_between_two_samples_misses_no_change() -> None:
    """A newcomer gets rows that others already have as of the last event, since the next one is a difference from it."""
    world = World(cluster(a=1, b=2))
    first = world.viewer("a")
    world.opened(first)
    world.snapshot = replace(cluster(a=5, b=6), index=world.snapshot.index + 1)
    second = world.viewer("a", "b")
    assert world.opened(second) == {"a": 1, "b": 6}
    world.hub.send_snapshot(world.snapshot)
    assert (got(first), got(second)) == ({"a": 5}, {"a": 5})


def test_only_rows_that_somebody_has_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(*arguments: Any) -> Any:
        cells = cells_of(*arguments)
        sizes.append(len(depths_in(event("cells", {"set": cells}))))
        return cells

    monkeypatch.setattr(live, "cells_of", counted)
    many = {f"topic{number}": number for number in range(50)}
    world = World(cluster(**many))
    for viewer in (world.viewer("topic1", "topic2"), world.viewer("topic2", "topic3")):
        world.opened(viewer)
    world.sample(**many)
    assert sizes == [2, 2, 3]
