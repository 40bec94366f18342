"""A node's refusal is told in NSQ's words."""

from __future__ import annotations

import pytest
import trio

from nsqadmin.options import Options
from nsqadmin.upstream.client import UpstreamError, opened
from tests.nsqadmin.upstream.test_token import Node, answer, listening


@pytest.mark.parametrize("said", [b"413 Request Entity Too Large", b"413 Content Too Large"])
def test_a_status_has_gos_phrase_whatever_a_node_and_python_call_it(said: bytes) -> None:
    node = Node(answer(said, b"too much"))

    async def test() -> None:
        with trio.fail_after(30):
            async with (
                listening(node) as (port,),
                opened(Options(lookupd_http_address=("127.0.0.1:1",))) as upstream,
            ):
                with pytest.raises(UpstreamError, match=r'^got response 413 Request Entity Too Large "too much"$'):
                    await upstream.get(f"127.0.0.1:{port}", "/stats")

    trio.run(test)
