"""A policy file, and what this nsqd can do of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.ack_option import Ack
from nsqd.policy.policy_file import KeptCopy, PolicyFile

WAITS = '[[policy]]\ntopic = "orders"\nack = "remote"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(WAITS)
    return path


def test_topics_may_wait_for_the_store(file: Path) -> None:
    assert PolicyFile(str(file)).log("orders").ack is Ack.REMOTE


def test_without_a_store_no_topic_may_wait_for_it(file: Path) -> None:
    with pytest.raises(StartupError, match='line 1: ack: "remote" needs --remote'):
        PolicyFile(str(file), may_wait_for_store=False)


def test_nor_may_one_in_a_copy(file: Path) -> None:
    file.write_text("?")
    copy = KeptCopy(str(file), WAITS, 1)
    with pytest.raises(StartupError):
        PolicyFile(str(file), copy=copy, may_wait_for_store=False)
    assert PolicyFile(str(file), copy=copy).content.is_copy
