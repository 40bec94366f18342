"""Shared by tools that work on all nsqd of a topic: finding these nsqd, reading the token, asking for confirmation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from nsqtools.command import ToolFailed
from nsqtools.nodes import AskFailed, Queries, Server, parse_server

NOT_ALL = 3  # exit status


def token_in(path: str) -> str:
    """Return the token in a file; "" without a path. Raise ToolFailed."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ToolFailed(f"cannot read {path}: {error}") from error


async def servers_with(
    queries: Queries, topic: str, *, nsqd: Sequence[str], lookupd: Sequence[str]
) -> tuple[list[Server], list[AskFailed]]:
    """Return the given nsqd, or those that nsqlookupds list for the topic, and who could not be asked.

    These are nsqlookupds that gave no answer, and nsqd that had the topic and are not registered now. Raises ToolFailed
    if there is no nsqd to ask.
    """
    if not lookupd:
        return [parse_server(address) for address in nsqd], []
    # A token is for nsqd only.
    lookup = Queries(connect_timeout=queries.connect_timeout, request_timeout=queries.request_timeout)
    lookupds = [parse_server(address) for address in lookupd]
    producers, failures = await lookup.producers(lookupds, topic)
    known = {producer.server for producer in producers}
    missing, silent = await lookup.missing(lookupds, topic)
    failures = failures or silent
    failures += [
        AskFailed(f"{it}: had the topic {topic} and is not registered now") for it in missing if it not in known
    ]
    if not producers:
        why = "".join(f"; {failure}" for failure in failures)
        raise ToolFailed(f"no nsqd has the topic {topic}{why}")
    return [producer.server for producer in producers], failures


async def is_confirmed(question: str, *, verb: str, yes: bool) -> bool:
    """Ask a person. Without a terminal, nobody is asked. Raise ToolFailed."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ToolFailed(f"nothing was done: use --yes to {verb} without being asked")
    sys.stderr.write(f"{question} Type yes: ")
    sys.stderr.flush()
    line: str = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.strip() == "yes"


def printable(text: str) -> str:
    """Escape what could move a terminal's cursor: clients choose keys and reasons."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
