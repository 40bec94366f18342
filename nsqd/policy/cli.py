"""The command `nsqd policy check`: arguments, output and exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from nsqcommon.wire.names import is_valid_name
from nsqd.policy.parse import Mistake, PolicyError, parse_policies

if TYPE_CHECKING:
    from nsqd.policy.policies import Policies

VALID: Final = 0
INVALID: Final = 1
NOT_READ: Final = 2

_ABOUT: Final = """\
Checks a policy file without a running nsqd. Prints every mistake with the line of its entry.
With --topic, prints the keys that apply to the topic, and the line of the entry each one comes from.
With --channel as well, also prints those of the channel.
"""

_STATUS: Final = """\
exit status:
  0          the file is valid
  1          the file has mistakes: nsqd would not start with it, and a running nsqd would keep its present policy
  2          the file cannot be read, or the arguments are wrong
"""


def main(argv: Sequence[str], *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    built = parser()
    asked = built.parse_args(argv)
    out, err = out or sys.stdout, err or sys.stderr
    if asked.channel is not None and asked.topic is None:
        built.error("--channel needs --topic")
    for name in (asked.topic, asked.channel):
        if name is not None and not is_valid_name(name):
            built.error(f"{name!r} is not a valid name of a topic or channel")
    try:
        policies = parse_policies(Path(asked.file).read_bytes().decode())
    except PolicyError as error:
        err.writelines(f"{asked.file}{_place(mistake)}: {mistake.text}\n" for mistake in error.mistakes)
        return INVALID
    except UnicodeDecodeError as error:
        err.write(f"{asked.file}: {error}\n")
        return INVALID
    except OSError as error:
        err.write(f"{asked.file}: {(error.strerror or str(error)).lower()}\n")
        return NOT_READ
    if asked.topic is None:
        out.write(f"{asked.file} is valid; entries: {len(policies.entries)}\n")
    else:
        _explain(policies, asked.topic, asked.channel, out)
    return VALID


def parser() -> argparse.ArgumentParser:
    built = argparse.ArgumentParser(prog="nsqd policy", description="Checks policy files for nsqd --policy-file.")
    commands = built.add_subparsers(required=True, metavar="check")
    check = commands.add_parser(
        "check",
        help="check a file, and print the rules for a name",
        description=_ABOUT,
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE", help="the policy file")
    check.add_argument("--topic", metavar="NAME", help="print the rules for this topic")
    check.add_argument("--channel", metavar="NAME", help="also print the rules for this channel of the topic")
    return built


def _place(mistake: Mistake) -> str:
    return f":{mistake.line}" if mistake.line else ""


def _explain(policies: Policies, topic: str, channel: str | None, out: TextIO) -> None:
    sections = [(f"topic {topic}", policies.explain(topic, None))]
    if channel is not None:
        sections.append((f"channel {topic}/{channel}", policies.explain(topic, channel)))
    for title, keys in sections:
        out.write(f"{title}\n")
        for key, it in keys.items():
            setting = f"{key} = {json.dumps(it.value)}"
            out.write(f"  {setting:<40} line {it.line}{', dry run' if it.is_dry else ''}\n")
        if not keys:
            out.write("  no rules: NSQ's behavior and the options apply\n")
