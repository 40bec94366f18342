from __future__ import annotations

import pytest
from taskiq.formatters.json_formatter import JSONFormatter

from nsqclient import ConfigError
from nsqjobs.taskiq import NsqBroker
from nsqjobs.taskiq.formatter import BuryingFormatter


def test_names_of_queues_become_names_of_topics() -> None:
    broker = NsqBroker(queue="of today", more_queues=["mail", "of today"])
    assert broker.queues == ("of today", "mail")


@pytest.mark.parametrize("url", ["redis://127.0.0.1", "nsq://127.0.0.1:0x1"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"broker URL|127\.0\.0\.1"):
        NsqBroker(url)


def test_an_option_that_nsq_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError):
        NsqBroker("nsq://127.0.0.1?max_in_fligth=10")


def test_a_user_s_formatter_is_used() -> None:
    formatter = JSONFormatter()
    broker = NsqBroker().with_formatter(formatter)
    assert isinstance(broker.formatter, BuryingFormatter)
    assert broker.formatter.inner is formatter
