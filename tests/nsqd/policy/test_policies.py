from __future__ import annotations

from time import process_time

import pytest

from nsqd.ack_option import Ack
from nsqd.broker.rules import (
    NO_CHANNEL_RULES,
    NO_TOPIC_RULES,
    BackoffRule,
    ChannelRules,
    LogRules,
    Overflow,
    TopicRules,
)
from nsqd.policy.parse import parse_policies
from nsqd.policy.policies import EffectiveKey, PolicyEntry

DAY = 24 * 3600 * 10**9

FILE = """
[[policy]]
topic = "orders.*"
channel = "billing"
max_attempts = 10
backoff = "exponential"
backoff_max = "10m"
ttl = "7d"
ttl_action = "bury"
max_rate = "30/m"
max_in_flight = 3

[[policy]]
topic = "orders.*"
backoff_min = "2s"
max_messages = 5
max_bytes = "20kB"
overflow = "drop-oldest"
expire_after = "30d"
retention_time = "7d"
ack = "synced"

[[policy]]
channel = "audit"
max_messages = 7
max_buried = 100
breaker = 0.5
expire_after = "1d12h"
expire_full = true
dry_run = true

[[policy]]
max_attempts = 100
retention_bytes = "1GB"
"""
POLICIES = parse_policies(FILE)


def test_each_key_comes_from_the_first_entry_that_matches_and_has_it() -> None:
    assert POLICIES.channel("orders.eu", "billing") == ChannelRules(
        max_attempts=10,
        backoff=BackoffRule(exponential=True, shortest_ms=2_000, longest_ms=600_000, jitter=0.2),
        ttl=7 * DAY,
        ttl_buries=True,
        max_rate=0.5,
        max_in_flight=3,
    )
    assert POLICIES.channel("orders.eu", "other") == ChannelRules(max_attempts=100)
    assert POLICIES.topic("orders.eu") == TopicRules(
        max_messages=5, max_bytes=20_000, overflow=Overflow.DROP_OLDEST, expire_after=30 * 24 * 3600
    )


def test_an_entry_that_is_tried_names_its_rules_and_not_what_completes_them() -> None:
    assert POLICIES.channel("t", "audit") == ChannelRules(
        max_attempts=100,
        max_messages=7,
        max_buried=100,
        breaker=0.5,
        expire_after=1.5 * 24 * 3600,
        expire_full=True,
        dry=frozenset({"max_messages", "max_buried", "breaker", "expire_after"}),
    )


def test_logs_get_ack_and_retention_and_know_whether_it_was_meant_for_them() -> None:
    of_orders = LogRules(ack=Ack.SYNCED, retention_time=7 * DAY, retention_bytes=10**9, is_own=True)
    assert POLICIES.log("orders.eu") == of_orders
    assert POLICIES.log("clicks") == LogRules(retention_bytes=10**9, is_own=False)
    assert list(POLICIES.retention_times()) == [7 * DAY]


def test_a_name_that_nothing_is_demanded_of_shares_the_value_of_all() -> None:
    policies = parse_policies("[[policy]]\ntopic = 'a'\nmax_attempts = 3\nack = 'synced'\n")
    assert policies.channel("b", "c") is NO_CHANNEL_RULES
    assert policies.topic("b") is NO_TOPIC_RULES
    assert policies.topic("a") is NO_TOPIC_RULES  # the ack is the log's
    assert policies.channel("a", "c") is policies.channel("a", "d")


def test_where_two_entries_contradict_each_other_the_longer_delay_holds() -> None:
    text = "[[policy]]\ntopic = 'a'\nbackoff_min = '1h'\n[[policy]]\nbackoff = 'linear'\nbackoff_max = '5m'\njitter = 0"
    backoff = parse_policies(text).channel("a", "c").backoff
    assert backoff == BackoffRule(exponential=False, shortest_ms=3_600_000, longest_ms=3_600_000, jitter=0.0)


@pytest.mark.parametrize(("pattern", "topic", "is_meant"), [
    ("*", "anything#ephemeral", True),
    ("orders", "orders", True),
    ("orders", "orders.eu", False),
    ("orders.*", "orders.eu.1", True),
    ("orders.*", "my-orders.eu", False),
    ("orders.*", "orders-eu", False),
    ("*.in#ephemeral", "x.in#ephemeral", True),
    ("*.in#ephemeral", "x.in", False),
])  # fmt: skip
def test_patterns(pattern: str, topic: str, is_meant: bool) -> None:
    policies = parse_policies(f"[[policy]]\ntopic = '{pattern}'\nmax_attempts = 3\n")
    assert (policies.channel(topic, "c").max_attempts == 3) is is_meant


def test_explanations_name_each_key_with_its_value_as_written_and_its_line() -> None:
    assert POLICIES.explain("orders.eu", None) == {
        "max_messages": EffectiveKey(5, 13, False),
        "max_bytes": EffectiveKey("20kB", 13, False),
        "overflow": EffectiveKey("drop-oldest", 13, False),
        "expire_after": EffectiveKey("30d", 13, False),
        "ack": EffectiveKey("synced", 13, False),
        "retention_time": EffectiveKey("7d", 13, False),
        "retention_bytes": EffectiveKey("1GB", 32, False),
    }
    assert POLICIES.explain("t", "audit")["max_buried"] == EffectiveKey(100, 23, True)
    assert list(POLICIES.explain("orders.eu", "billing")) == [
        "max_attempts", "backoff", "backoff_min", "backoff_max", "ttl", "ttl_action", "max_rate", "max_in_flight",
    ]  # fmt: skip


@pytest.mark.parametrize(("times", "interval"), [([], 60.0), (["30d"], 60.0), (["5m", "1h"], 30.0), (["2s"], 1.0)])
def test_looks_for_what_expires_are_as_frequent_as_the_shortest_time_needs(times: list[str], interval: float) -> None:
    text = "".join(f"[[policy]]\ntopic = 't{time}'\nexpire_after = '{time}'\n" for time in times)
    assert parse_policies(text).expiry_interval == interval


def test_patterns_of_many_stars_take_no_time() -> None:
    many = "*a" * 25 + "*b"
    policies = parse_policies(f'[[policy]]\ntopic = "{many}"\nchannel = "{many}"\nmax_attempts = 3')
    began = process_time()
    assert policies.channel("a" * 63 + "b", "a" * 64) is NO_CHANNEL_RULES
    assert policies.channel("a" * 64, "a" * 63 + "b") is NO_CHANNEL_RULES
    assert policies.channel("a" * 63 + "b", "a" * 63 + "b").max_attempts == 3
    assert process_time() - began < 5  # hours, if all combinations were tried


def test_patterns_are_compared_with_a_topic_once_for_all_that_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    matches = PolicyEntry.matches_topic

    def counted(entry: PolicyEntry, topic: str) -> bool:
        compared.append(topic)
        return matches(entry, topic)

    monkeypatch.setattr(PolicyEntry, "matches_topic", counted)
    policies = parse_policies(FILE)
    policies.log("orders.eu")
    policies.topic("orders.eu")
    rules = [policies.channel("orders.eu", f"c{number}") for number in range(100)]
    assert compared == ["orders.eu"] * len(policies.entries)
    assert rules == [ChannelRules(max_attempts=100)] * 100
    assert policies.topic("other") == NO_TOPIC_RULES


def test_rules_about_groups() -> None:
    text = (
        "[[policy]]\norder = 'group'\n[[policy]]\nshare = 'group'\nweights = {gold = 5, \"50 %\" = 2}\nmax_held = 7\n"
    )
    policies = parse_policies(text)
    rules = policies.channel("t", "c")
    assert rules == ChannelRules(order="group", share="group", weights=(("50 %", 2), ("gold", 5)), max_held=7)
    assert rules.has_groups
    assert policies.explain("t", "c")["weights"].value == {"gold": 5, "50 %": 2}
    assert not ChannelRules(weights=(("gold", 5),), max_held=7).has_groups
