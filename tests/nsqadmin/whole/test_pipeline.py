"""The topic's page of nsqadmin shows the counts of `nsqpipe aggregate`, if that is configured."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.process import Nsqadmin, Nsqd, eventually

WINDOW = {
    "start": "2026-03-01T12:00:00Z",
    "rate": 2.0,
    "bytes": 2400,
    "size_p50": 20,
    "size_p95": 20,
    "size_p99": 21,
}


def page_of(admin: Nsqadmin, topic: str) -> str:
    eventually(lambda: admin.http("GET", f"/topics/{topic}").status == 200)
    return admin.http("GET", f"/topics/{topic}").body.decode()


def test_a_topics_page_draws_what_was_counted(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    found = {"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:05:00Z", "topics": {"orders": [WINDOW]}}
    results.write_text(json.dumps(found))
    with Nsqd(tmp_path / "data") as nsqd:
        for topic in ("orders", "clicks"):
            nsqd.post(f"/topic/create?topic={topic}")
        where = f"nsqd-http-address={nsqd.http_address[0]}:{nsqd.http_address[1]}"
        with Nsqadmin(where, f"pipeline-results={results}") as admin:
            page = page_of(admin, "orders")
            assert "Counted by the pipeline" in page
            assert "windows of 1m" in page
            assert "Size of a message" in page
            assert "Counted by the pipeline" not in page_of(admin, "clicks")
        with Nsqadmin(where) as admin:
            assert "Counted by the pipeline" not in page_of(admin, "orders")
