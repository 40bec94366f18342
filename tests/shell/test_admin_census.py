"""What nsqadmin knows of the directory, sweep after sweep."""

from __future__ import annotations

from typing import Any, cast

import trio

from nsqadmin.options import Options
from nsqadmin.sampling.census import Census
from nsqadmin.upstream.client import Upstream
from nsqadmin.upstream.slices import Slices, at_once

LOOKUPDS = ("l1:4161", "l2:4161")


class FakeUpstream:
    """nsqlookupds that know one topic, which no node has."""

    def __init__(self, **channels: list[str]) -> None:
        self.channels = {"l1:4161": channels["l1"], "l2:4161": channels["l2"]}

    async def get_json(self, address: str, target: str, *, is_lookupd: bool) -> Any:
        await trio.lowlevel.checkpoint()
        answers = {
            "/nodes": {"producers": []},
            "/topics": {"topics": ["t"]},
            "/info": {"version": "1.3.0"},
            "/channels?topic=t": {"channels": self.channels[address]},
        }
        return answers[target]

    async def in_slices(self, work: Slices[Any]) -> Any:
        return at_once(work)


def test_channels_of_inactive_topics_are_those_that_are_registered_now() -> None:
    upstream = FakeUpstream(l1=["a", "b"], l2=["b", "c"])
    options = Options(lookupd_http_address=LOOKUPDS)
    census = Census(lambda: options, cast(Upstream, upstream), lambda: 0.0)

    async def channels() -> tuple[str, ...]:
        async with trio.open_nursery() as nursery:
            await census.start(nursery).wait()
        return census.directory().channels["t"]

    async def run() -> None:
        assert await channels() == ("a", "b", "c")
        upstream.channels = {"l1:4161": ["b"], "l2:4161": []}
        assert await channels() == ("b",)

    trio.run(run)
