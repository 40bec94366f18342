"""The command `nsqd policy check`: its arguments, its output, and its exit status."""

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
Checks a file for --policy-file, without a running nsqd. Every mistake is printed with the line of its entry.
With --topic, and --channel if it is about a channel, prints the keys that hold there, and the line of the entry that
each one comes from.
"""

_STATUS: Final = """\
exit status:
  0          the file is valid
  1          the file has mistakes: nsqd would not start with it, and a running nsqd would keep what it has
  2          the file cannot be read, or the arguments are wrong
"""


def main(argv: Sequence[str], *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    made = parser()
    asked = made.parse_args(argv)
    out, err = out or sys.stdout, err or sys.stderr
    if asked.channel is not None and asked.topic is None:
        made.error("--channel needs --topic")
    for name in (asked.topic, asked.channel):
        if name is not None and not is_valid_name(name):
            made.error(f"{name!r} is no name of a topic or channel")
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
    made = argparse.ArgumentParser(prog="nsqd policy", description="Looks at files for --policy-file.")
    commands = made.add_subparsers(required=True, metavar="check")
    check = commands.add_parser(
        "check",
        help="check a file, and say what holds for a name",
        description=_ABOUT,
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE", help="the file that --policy-file of nsqd names")
    check.add_argument("--topic", metavar="NAME", help="print what holds for this topic")
    check.add_argument("--channel", metavar="NAME", help="and what holds for this channel of it")
    return made


def _place(mistake: Mistake) -> str:
    return f":{mistake.line}" if mistake.line else ""


def _explain(policies: Policies, topic: str, channel: str | None, out: TextIO) -> None:
    wanted = [(f"topic {topic}", policies.explain(topic, None))]
    if channel is not None:
        wanted.append((f"channel {topic}/{channel}", policies.explain(topic, channel)))
    for title, held in wanted:
        out.write(f"{title}\n")
        for key, it in held.items():
            setting = f"{key} = {json.dumps(it.value)}"
            out.write(f"  {setting:<40} line {it.line}{', dry run' if it.is_dry else ''}\n")
        if not held:
            out.write("  nothing: all is as in NSQ and as the options say\n")
