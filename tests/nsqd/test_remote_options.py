"""Which options for a store of objects can work together."""

from __future__ import annotations

import platform

import pytest

from nsqcommon.options import MILLISECOND, SECOND, parse
from nsqcommon.startup import StartupError
from nsqd.ack_option import Ack
from nsqd.options import Options, default_node_id

STORE = "--remote=s3://bucket/nsq"


def options(*argv: str) -> Options:
    return parse(Options, argv, {}, "nsqd")


def test_nothing_is_stored_elsewhere_unless_told() -> None:
    assert options().remote == ""


def test_the_defaults_suit_a_store_that_charges_for_requests() -> None:
    chosen = options(STORE)
    assert (chosen.remote_interval, chosen.remote_delay, chosen.remote_timeout) == (
        50 * MILLISECOND,
        SECOND,
        10 * SECOND,
    )
    assert chosen.remote_buffer == 64 << 20


def test_a_standby_needs_a_store() -> None:
    with pytest.raises(StartupError, match="--standby needs --remote, which names the store"):
        options("--standby")
    chosen = options(STORE, "--standby")
    assert (chosen.standby, chosen.standby_after) == (True, 10 * SECOND)


@pytest.mark.parametrize("flag", ["--ack=remote", "--topic-ack=orders=remote"])
def test_an_ok_that_waits_for_the_store_needs_one(flag: str) -> None:
    with pytest.raises(StartupError, match="--ack=remote needs --remote, which names the store"):
        options(flag)
    assert Ack.REMOTE in (options(STORE, flag).ack, *options(STORE, flag).topic_acks.values())


def test_message_ids_are_those_of_the_name_and_not_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = options(STORE, "--remote-name=orders").node_id
    assert options(STORE).node_id == options("--remote-name=orders").node_id == default_node_id()
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    assert options(STORE, "--remote-name=orders").node_id == here
    assert options(STORE, "--remote-name=orders", "--node-id=7").node_id == 7


def test_strictness_needs_a_store_and_a_rate_may_be_without_limit() -> None:
    with pytest.raises(StartupError, match="--remote-strict needs --remote, which names the store"):
        options("--remote-strict")
    chosen = options(STORE, "--remote-strict", "--remote-rate=0")
    assert (chosen.remote_strict, chosen.remote_rate, options(STORE).remote_rate) == (True, 0, 100_000_000)
