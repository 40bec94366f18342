"""The page lists everything that the library has on trio and not on asyncio."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nsqclient
from nsqclient import aio

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python-client.md"


def names_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_the_page_names_all_that_asyncio_lacks() -> None:
    lacking = set[str]()
    for ours, theirs in ((nsqclient.Consumer, aio.Consumer), (nsqclient.Producer, aio.Producer)):
        lacking |= names_of(ours) - names_of(theirs)
    lacking |= names_of(nsqclient.Message) - names_of(aio.Message)
    for function, counterpart in (
        (nsqclient.open_consumer, aio.open_consumer),
        (nsqclient.open_producer, aio.open_producer),
        (nsqclient.Consumer.run, aio.Consumer.run),
    ):
        lacking |= parameters_of(function) - parameters_of(counterpart)
    [line] = re.findall(r"^Not available are .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert lacking == set(re.findall(r"`(\w+)`", line)) - {"quorum"}
