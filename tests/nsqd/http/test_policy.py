"""GET /config/policy, and where else a policy file is noticed."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nsqd.broker.rules import ChannelRules, TopicRules
from nsqd.policy.policy_file import PolicyFile
from tests.nsqd.http.conftest import Nsqd, code

FILE = '[[policy]]\ntopic = "orders.*"\nack = "synced"\n\n[[policy]]\nmax_attempts = 10\ndry_run = true\n'


@pytest.fixture
def with_file(tmp_path: Path) -> Nsqd:
    path = tmp_path / "policy.toml"
    path.write_text(FILE)
    return Nsqd(policy=PolicyFile(str(path), clock=lambda: 1_700_000_000_000_000_000))


def told(nsqd: Nsqd, target: str) -> Any:
    return json.loads(nsqd.get(target).body)


def test_without_a_file_nothing_is_demanded(nsqd: Nsqd) -> None:
    nothing = {"path": "", "digest": "", "read_at": 0, "error": "", "topics_left": 0}
    assert told(nsqd, "/config/policy") == nothing
    assert told(nsqd, "/config/policy?topic=t&channel=c") == {**nothing, "topic": {}, "channel": {}}


def test_what_holds_is_told_with_its_lines(with_file: Nsqd, tmp_path: Path) -> None:
    of_file = {
        "path": str(tmp_path / "policy.toml"),
        "digest": sha256(FILE.encode()).hexdigest(),
        "read_at": 1_700_000_000_000_000_000,
        "error": "",
        "topics_left": 0,
    }
    ack = {"ack": {"value": "synced", "line": 1, "dry_run": False}}
    assert told(with_file, "/config/policy") == of_file
    assert told(with_file, "/config/policy?topic=orders.eu") == {**of_file, "topic": ack}
    assert told(with_file, "/config/policy?topic=orders.eu&channel=c") == {
        **of_file,
        "topic": ack,
        "channel": {"max_attempts": {"value": 10, "line": 5, "dry_run": True}},
    }


@pytest.mark.parametrize(("query", "error"), [
    ("topic=a/b", "INVALID_TOPIC"),
    ("channel=c", "INVALID_TOPIC"),
    ("topic=t&channel=*", "INVALID_CHANNEL"),
])  # fmt: skip
def test_bad_names(nsqd: Nsqd, query: str, error: str) -> None:
    answer = nsqd.get(f"/config/policy?{query}")
    assert (answer.status, answer.body) == (400, code(error))


def test_only_who_asks_for_ages_is_told_that_there_is_no_file(nsqd: Nsqd) -> None:
    assert "policy_digest" not in told(nsqd, "/stats?format=json")
    assert told(nsqd, "/stats?format=json&ages=true")["policy_digest"] == ""


def test_stats_with_ages_tell_when_something_unused_goes(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.broker.topics["t"].take_rules(TopicRules(expire_after=200.0))
    nsqd.broker.topics["t"].channels["c"].take_rules(ChannelRules(expire_after=100.0))
    (topic,) = told(nsqd, "/stats?format=json&ages=true")["topics"]
    (channel,) = topic["channels"]
    assert topic["expires_at"] - channel["expires_at"] == 100 * 1_000_000_000
    (topic,) = told(nsqd, "/stats?format=json")["topics"]
    assert "expires_at" not in topic
    assert "expires_at" not in topic["channels"][0]


def test_stats_tell_which_file_holds_and_no_error(with_file: Nsqd) -> None:
    assert "policy_error" not in (stats := told(with_file, "/stats?format=json"))
    assert stats["policy_digest"] == told(with_file, "/config/policy")["digest"]
    assert b"\nnsqd_policy_file_valid 1\n" in with_file.get("/metrics").body
