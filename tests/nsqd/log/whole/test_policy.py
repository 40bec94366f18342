"""Ack and retention that a policy file says and changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nsqd.ack_option import Ack
from nsqd.broker.rules import NO_LOG_RULES, LogRules
from nsqd.log.retention import Retention
from tests.nsqd.log.harness import opened
from tests.support.log_settings import log_settings

SECOND = 1_000_000_000


@dataclass
class Policy:
    rules: dict[str, LogRules] = field(default_factory=dict)

    def log(self, topic: str, /) -> LogRules:
        return self.rules.get(topic, NO_LOG_RULES)

    def retention_times(self) -> Iterable[int]:
        return [rules.retention_time for rules in self.rules.values() if rules.retention_time is not None]


def test_each_key_takes_precedence_over_the_options() -> None:
    given = Retention(time=5 * SECOND, bytes=10)
    policy = Policy({"t": LogRules(retention_time=SECOND), "u": LogRules(ack=Ack.SYNCED, retention_bytes=0)})
    settings = log_settings(ack="memory", topic_ack={"t": "written"}, retention=given, policy=policy)
    assert settings.retention_of("t") == Retention(time=SECOND, bytes=10)
    assert settings.retention_of("u") == Retention(time=5 * SECOND, bytes=0)
    assert settings.retention_of("v") == given
    assert [settings.ack_of(topic) for topic in ("t", "u", "v")] == [Ack.WRITTEN, Ack.SYNCED, Ack.MEMORY]


def test_a_retention_is_a_topics_own_if_the_policy_or_an_option_names_it() -> None:
    policy = Policy({"t": LogRules(retention_time=SECOND, is_own=True), "u": LogRules(retention_time=SECOND)})
    settings = log_settings(topic_retention={"v": Retention()}, policy=policy)
    assert [settings.is_own_retention(topic) for topic in "tuvw"] == [True, False, True, False]


def test_the_interval_of_looks_follows_the_policy() -> None:
    policy = Policy()
    settings = log_settings(policy=policy)
    assert settings.retention_interval == 60.0
    policy.rules["t"] = LogRules(retention_time=50 * SECOND)
    assert settings.retention_interval == 5.0
    assert log_settings().retention_interval is None


def test_a_publish_that_waits_is_answered_as_it_was_promised(tmp_path: Path) -> None:
    policy = Policy({"t": LogRules(ack=Ack.SYNCED)})
    with opened(tmp_path, policy=policy) as store:
        before = store.publish(b"x")
        policy.rules["t"] = LogRules(ack=Ack.WRITTEN)
        store.store.settings_changed(["t", "a topic without a log"])
        after = store.publish(b"y")
        assert (before.settled, after.settled) == (False, True)
        store.sync()
        assert (before.settled, before.error) == (True, None)
