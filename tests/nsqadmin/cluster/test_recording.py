"""The snapshot file."""

from __future__ import annotations

import json

import pytest

from nsqadmin.cluster.model import Activity, Finding, Recording, Series, Severity
from nsqadmin.cluster.recording import NotASnapshot, decode, encode
from tests.support import picture


def a_recording() -> Recording:
    finding = Finding(rule="D3", severity=Severity.PROBLEM, verdict="No consumer", advice="Start one", topic="t")
    topic = picture.topic(picture.channel(picture.channel_node(depth=3, clients=(picture.client(),))))
    series = Series(end=picture.NOW, step=5.0, values={"depth": (1.0, None, 3.0)})
    return Recording(
        snapshot=picture.snapshot(topic, findings=(finding,)),
        series={"channel:t/c@12m": series},
        activity=(Activity(at=picture.NOW, what="node_down", text="n1 is down"),),
    )


def test_a_recording_is_read_as_it_was_written() -> None:
    recording = a_recording()
    assert decode(encode(recording)) == recording


def test_fields_of_another_release_are_passed_over_and_missing_ones_have_defaults() -> None:
    document = json.loads(encode(a_recording()))
    document["snapshot"]["nodes"][0]["mood"] = "fine"
    del document["snapshot"]["nodes"][0]["has_history"]
    assert decode(json.dumps(document).encode()).snapshot.nodes[0].has_history is False


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":"nsqadmin-snapshot-1"}',
        b'{"format":"nsqadmin-snapshot-1","snapshot":{"index":"1"}}',
        b'{"format":"nsqadmin-snapshot-1","snapshot":{"index":1,"taken_at":1,"interval":1,"has_lookupds":true,"nodes":[1]}}',
    ],
)
def test_what_is_no_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(NotASnapshot):
        decode(text)
