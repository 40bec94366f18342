"""A policy file, and what this nsqd can do of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nsqcommon.startup import StartupError
from nsqd.ack_option import Ack
from nsqd.policy.policy_file import KeptCopy, PolicyFile
from tests.support.jumping import run_with_threads

WAITS = '[[policy]]\ntopic = "orders"\nack = "remote"\n'
WRITTEN = WAITS.replace("remote", "written")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(WAITS)
    return path


def test_topics_may_wait_for_the_store(file: Path) -> None:
    assert PolicyFile(str(file)).log("orders").ack is Ack.REMOTE


def test_a_change_is_told_and_then_copied(file: Path) -> None:
    policy = PolicyFile(str(file))
    copies: list[str] = []

    def keep(copy: KeptCopy) -> bool:
        copies.append(copy.text)
        return True

    policy.save_copies_with(keep)

    async def main() -> None:
        told = trio.Event()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(policy.follow, told.set)
                changed = file.with_suffix(".new")
                changed.write_text(WRITTEN)
                changed.replace(file)
                await told.wait()
                assert policy.log("orders").ack is Ack.WRITTEN
                while len(copies) < 2:  # noqa: ASYNC110  # a thread writes it, and tells nobody
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()

    run_with_threads(main)
    assert copies == [WAITS, WRITTEN]


def test_without_a_store_no_topic_may_wait_for_it(file: Path) -> None:
    with pytest.raises(StartupError, match='line 1: ack: "remote" needs --remote'):
        PolicyFile(str(file), may_wait_for_store=False)


def test_nor_may_one_in_a_copy(file: Path) -> None:
    file.write_text("?")
    copy = KeptCopy(str(file), WAITS, 1)
    with pytest.raises(StartupError):
        PolicyFile(str(file), copy=copy, may_wait_for_store=False)
    assert PolicyFile(str(file), copy=copy).content.is_copy
