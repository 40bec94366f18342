"""nsqadmin while a node with a copy in a shared folder loses its store, and then its machine."""

from __future__ import annotations

import shutil
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")


def test_a_node_that_loses_its_store_and_then_its_machine(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with Nsqlookupd() as lookupd:
        options = (
            f"remote=file://{shared}",
            "remote-name=orders-1",
            "remote-interval=2ms",
            "remote-timeout=300ms",
            "topic-ack=orders=remote",
            "take-over",
            "broadcast-address=127.0.0.1",
            f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",
        )
        admin = Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", "sample-interval=300ms", PATIENT)
        lost = Nsqd(tmp_path / "a", *options)
        with lost, admin:

            def findings() -> dict[str, Any]:
                return {it["rule"]: it for it in admin.json("GET", "/api/v2/diagnose").json["findings"]}

            def page(path: str) -> str:
                return unescape(admin.http("GET", path).body.decode()).replace("<wbr>", "")

            lost.post("/topic/create?topic=orders")
            lost.post("/channel/create?topic=orders&channel=c")
            lost.post("/pub?topic=orders", b"one")
            lost.post("/pub?topic=bills", b"two")
            eventually(lambda: "the store has it, so it survives the loss of the machine" in page("/topics/orders"))
            eventually(lambda: "OK means <code>written</code>" in page("/topics/bills"))
            eventually(lambda: f'title="orders-1 in file://{shared}">complete' in page("/nodes"))
            assert "D30" not in findings(), "the first owner takes nothing over"

            shared.rename(tmp_path / "away")
            lost.post("/pub?topic=bills", b"three")
            eventually(lambda: "D28" in findings())
            eventually(lambda: "D16" not in findings())  # a busy machine may be slow to answer for a moment
            assert "Store away" in page("/nodes")
            (tmp_path / "away").rename(shared)
            eventually(lambda: "D28" not in findings() and ">complete" in page("/nodes"))

            lost.kill()
            shutil.rmtree(lost.data_path)
            with Nsqd(tmp_path / "b", *options) as new:
                before, after = (f"127.0.0.1:{it.http_address[1]}" for it in (lost, new))
                taken_over = eventually(lambda: findings().get("D30"))
                assert taken_over["verdict"] == f"{after} has taken over orders-1"
                (event,) = [
                    it for it in admin.json("GET", "/api/v2/activity").json["activity"] if it["what"] == "taken_over"
                ]
                assert event["text"] == f"nsqd {after} has taken over orders-1 from {before}"
                assert admin.json("GET", "/api/v2/health").json["totals"]["depth"] == 3, "each message is counted once"
                assert before not in page("/nodes")
        assert "Traceback" not in admin.log


def test_a_standby_that_is_listed_is_shown_as_one_and_gets_no_messages(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    options = (f"remote=file://{shared}", "remote-name=orders-1", "broadcast-address=127.0.0.1", "standby")
    owner, standby = (Nsqd(tmp_path / name, *options) for name in ("a", "b"))
    with owner:
        standby.start_waiting()
        try:
            names = [f"127.0.0.1:{it.http_address[1]}" for it in (standby, owner)]
            with Nsqadmin(*(f"nsqd-http-address={it}" for it in names), "sample-interval=300ms", PATIENT) as admin:

                def copies() -> dict[str, Any]:
                    return {it["address"]: it["remote"] for it in admin.json("GET", "/api/v2/nodes").json["nodes"]}

                # On a busy machine a node may take more than the second that a sample waits, and then it is said to be slow.
                eventually(lambda: [(copies()[it] or {}).get("state") for it in names] == ["standby", "owner"])
                eventually(lambda: admin.json("GET", "/api/v2/diagnose").json["findings"] == [])
                assert admin.json("GET", "/api/v2/health").json["unanswered"] == []
                assert "Standby" in admin.http("GET", "/nodes").body.decode()
                eventually(lambda: copies()[names[1]]["standbys"] == [names[0]])
                assert f"standby {names[0]}" in admin.http("GET", "/nodes").body.decode().replace("<wbr>", "")
                assert "Traceback" not in admin.log
        finally:
            standby.kill()
