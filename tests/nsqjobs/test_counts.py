from __future__ import annotations

import json

from nsqjobs.counts import QueueCounts, read_stats


def test_a_queue_is_its_topic_and_the_channel_of_jobs() -> None:
    jobs = {"channel_name": "jobs", "depth": 2, "deferred_count": 3, "in_flight_count": 4, "buried_count": 5}
    archive = {**jobs, "channel_name": "archive", "depth": 100}
    body = json.dumps({"topics": [{"topic_name": "t", "depth": 1, "channels": [archive, jobs]}]}).encode()
    counts = read_stats(body, "jobs")
    assert counts == QueueCounts(waiting=3, deferred=3, in_flight=4, buried=5)
    assert counts.undone == 10


def test_a_topic_that_nobody_has_used_is_empty() -> None:
    assert read_stats(b'{"topics": []}', "jobs") == QueueCounts()
    assert read_stats(b'{"topics": null}', "jobs") == QueueCounts()
    assert read_stats(b'{"topics": [{"topic_name": "t", "depth": 7, "channels": []}]}', "jobs") == QueueCounts(
        waiting=7
    )
