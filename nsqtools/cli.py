"""The entry points of the commands. Each blocks signals before it imports its tool."""

from __future__ import annotations

import sys
from importlib import import_module

from nsqcommon.entry import hold_signals


def start(tool: str) -> None:
    """Run a tool and exit with its status."""
    hold_signals()
    sys.exit(import_module(f"nsqtools.{tool}").main())


def nsq_bench() -> None:
    start("nsq_bench")


def nsq_dead() -> None:
    start("nsq_dead")


def nsq_deferred() -> None:
    start("nsq_deferred")


def nsq_replay() -> None:
    start("nsq_replay")


def nsq_stat() -> None:
    start("nsq_stat")


def nsq_tail() -> None:
    start("nsq_tail")


def nsq_to_file() -> None:
    start("nsq_to_file")


def nsq_to_http() -> None:
    start("nsq_to_http")


def nsq_to_nsq() -> None:
    start("nsq_to_nsq")


def outbox_to_nsq() -> None:
    start("outbox_to_nsq")


def to_nsq() -> None:
    start("to_nsq")
