"""The page lists everything that the library has on trio and not on asyncio, or not in plain calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsqclient
from nsqclient import aio, sync

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python-client.md"
ROW = re.compile(r"^\| (`.*`) \| (asyncio|plain calls|asyncio, plain calls) \| .+ \|$", re.MULTILINE)


def refused(colour: str) -> set[str]:
    """Return the names in the table of what is left out."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name for names, colours in rows if colour in colours for name in re.findall(r"`(\w+)`", names)}


def names_of(kind: object) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def lacking(ours: type, theirs: type) -> set[str]:
    """Return names, and parameters of methods that both have."""
    missing = names_of(ours) - names_of(theirs)
    for name in names_of(ours) & names_of(theirs):
        if inspect.isfunction(mine := getattr(ours, name)):
            missing |= parameters_of(mine) - parameters_of(getattr(theirs, name))
    return missing


def test_the_page_names_all_that_asyncio_lacks() -> None:
    missing = {name for name in ("serve_consumer",) if not hasattr(aio, name)}
    for ours, theirs in (
        (nsqclient.Consumer, aio.Consumer),
        (nsqclient.Producer, aio.Producer),
        (nsqclient.Message, aio.Message),
        (nsqclient.Receipt, aio.Receipt),
    ):
        missing |= lacking(ours, theirs)
    for function, counterpart in (
        (nsqclient.open_consumer, aio.open_consumer),
        (nsqclient.open_producer, aio.open_producer),
    ):
        missing |= parameters_of(function) - parameters_of(counterpart)
    assert missing == refused("asyncio")


def test_the_page_names_all_that_plain_calls_lack() -> None:
    missing = {"serve_consumer"}
    missing |= lacking(nsqclient.Consumer, sync.Consumer) | lacking(nsqclient.Producer, sync.Producer)
    missing |= {
        name
        for name in names_of(nsqclient.Message)
        if inspect.isasyncgenfunction(inspect.unwrap(getattr(nsqclient.Message, name)))
    }
    assert missing == refused("plain calls")


@pytest.mark.parametrize("ours", [nsqclient.open_consumer, nsqclient.open_producer])
def test_plain_calls_take_all_arguments(ours: Callable[..., Any]) -> None:
    theirs = {nsqclient.open_consumer: sync.consumer, nsqclient.open_producer: sync.producer}[ours]
    assert parameters_of(theirs) == {"arguments", "options"}
