"""nsqadmin shows publishes that were sent again and not made again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.process import Nsqadmin, Nsqd, eventually


def test_repeats_of_all_nodes_are_a_figure_of_the_topic_once_there_are_any(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(Nsqd(tmp_path / name)) for name in ("a", "b")]
        addresses = (f"nsqd-http-address=127.0.0.1:{node.http_address[1]}" for node in nodes)
        admin = stack.enter_context(Nsqadmin(*addresses, "sample-interval=300ms"))
        for node in nodes:
            node.http("POST", "/pub?topic=t&key=order-1", b"x")
        eventually(lambda: admin.http("GET", "/topics/t").status == 200)
        assert b"Repeats" not in admin.http("GET", "/topics/t").body
        for node in nodes:
            node.http("POST", "/pub?topic=t&key=order-1", b"x")
        text = eventually(lambda: (page := admin.http("GET", "/topics/t").body.decode()).count("Repeats") and page)
        eventually(lambda: b'nsq_topic_repeats{topic="t"} 2' in admin.http("GET", "/metrics").body)
        assert admin.http("GET", "/api/v2/topics/t").json["repeat_count"] == 2
        assert "Repeated publishes" in text
