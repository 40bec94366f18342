"""The command `nsqd policy check`: arguments, output and exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TextIO

from nsqcommon.file_check import VALID, CheckFailed, checked
from nsqcommon.limits_of_nodes import sum_in_words
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, run_one_of
from nsqcommon.wire.names import is_valid_name
from nsqd.policy.parse import doubts, parse_policies

if TYPE_CHECKING:
    from nsqd.policy.policies import Policies

_MOST_NODES: Final = 1_000_000  # more are a slip, and would take memory
_OF_EACH_NODE: Final = ("max_in_flight", "max_in_flight_per_group")  # limits that each node applies by itself

_ABOUT: Final = """\
Checks a policy file without a running nsqd. Prints every mistake with the line of its entry, and warns of rules that
are valid but dangerous.
With --topic, prints the keys that apply to the topic, and the line of the entry each one comes from.
With --channel as well, also prints those of the channel.
With --nodes, says what max_in_flight and max_in_flight_per_group, which each node applies by itself, allow on that many
nodes together.
"""

_STATUS: Final = """\
exit status:
  0          the file is valid
  1          the file has mistakes: nsqd would not start with it, and a running nsqd would keep its present policy
  2          the file cannot be read, or the arguments are wrong
"""


def _name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(f"{text!r} is not a valid name of a topic or channel")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    file: str = argument("the policy file", kind=parsed_by(str, "FILE"))
    topic: str = option("", "print the rules for this topic", kind=parsed_by(_name, "NAME"))
    channel: str = option("", "also print the rules for this channel of the topic", kind=parsed_by(_name, "NAME"))
    nodes: int = option(
        0,
        "number of nodes that have the channel, each worker being one; 0: unknown",
        at_least=0,
        at_most=_MOST_NODES,
    )

    def __post_init__(self) -> None:
        if self.channel and not self.topic:
            raise StartupError("--channel needs --topic")
        if self.nodes and not self.channel:
            raise StartupError("--nodes needs --channel")


def main(argv: Sequence[str], *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    check = Command(
        table=CheckOptions,
        run=partial(_check, out=out or sys.stdout, err=err or sys.stderr),
        summary="check a file, and print the rules for a name",
        about=_ABOUT,
        closing=_STATUS,
    )
    return run_one_of({"check": check}, argv, "nsqd policy", about="Checks policy files for nsqd --policy-file.")


def _check(asked: CheckOptions, *, out: TextIO, err: TextIO) -> int:
    try:
        policies = checked(asked.file, parse_policies, err)
    except CheckFailed as failed:
        return failed.status
    err.writelines(f"{replace(it, text=f'warning: {it.text}').in_file(asked.file)}\n" for it in doubts(policies))
    if not asked.topic:
        out.write(f"{asked.file} is valid; entries: {len(policies.entries)}\n")
    else:
        _explain(policies, asked, out)
    return VALID


def _explain(policies: Policies, asked: CheckOptions, out: TextIO) -> None:
    topic, channel = asked.topic, asked.channel
    sections = [(f"topic {topic}", policies.explain(topic, None))]
    if channel:
        sections.append((f"channel {topic}/{channel}", policies.explain(topic, channel)))
    for title, keys in sections:
        out.write(f"{title}\n")
        for key, it in keys.items():
            setting = f"{key} = {json.dumps(it.value)}"
            words = f"; {_over_nodes(it.value, asked.nodes)}" if key in _OF_EACH_NODE else ""
            out.write(f"  {setting:<40} line {it.line}{', dry run' if it.is_dry else ''}{words}\n")
        if not keys:
            out.write("  no rules: NSQ's behavior and the options apply\n")


def _over_nodes(limit: int, nodes: int) -> str:
    if not nodes:
        return f"{limit:,} on each node, more on several (see --nodes)"
    return sum_in_words([limit] * nodes, "{} nodes") if nodes > 1 else f"{limit:,} on one node"
