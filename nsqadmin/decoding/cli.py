"""The command `nsqadmin decoders check`: arguments, output and exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from nsqadmin.decoding.decoder import Undecodable
from nsqadmin.decoding.decoders import read_rules
from nsqcommon.file_check import INVALID, NOT_READ, VALID, CheckFailed, checked
from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, run_one_of
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqadmin.decoding.building import BuiltRule
    from nsqadmin.decoding.decoders import RulesFile

_ABOUT: Final = """\
Checks a decoders file without a running nsqadmin: also that the descriptors and schemas can be read that it names.
Prints every mistake with the line of its entry.
With --topic, prints the entries that apply to the topic.
With --body as well, decodes the bytes of that file as a body of the topic, and prints the result.
"""

_STATUS: Final = """\
exit status:
  0          the file is valid, and the body fits
  1          the file has mistakes: nsqadmin would not start with it, and a running nsqadmin would keep its present
             decoders; or the body does not fit
  2          a file cannot be read, or the arguments are wrong
"""


def _name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(f"{text!r} is not a valid name of a topic")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    file: str = argument("the decoders file", kind=parsed_by(str, "FILE"))
    topic: str = option("", "print the entries for this topic", kind=parsed_by(_name, "NAME"))
    body: str = option("", "also decode the bytes of this file as a body of the topic", kind=parsed_by(str, "FILE"))
    content_type: str = option("", "content type of that body, if the entries ask for one", kind=parsed_by(str, "TYPE"))

    def __post_init__(self) -> None:
        if self.body and not self.topic:
            raise StartupError("--body needs --topic")
        if self.content_type and not self.body:
            raise StartupError("--content-type needs --body")


def main(argv: Sequence[str], *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    check = Command(
        table=CheckOptions,
        run=partial(_check, out=out or sys.stdout, err=err or sys.stderr),
        summary="check a file, and decode a body with it",
        about=_ABOUT,
        closing=_STATUS,
    )
    about = "Checks decoders files for nsqadmin --decoders-file."
    return run_one_of({"check": check}, argv, "nsqadmin decoders", about=about)


def _check(asked: CheckOptions, *, out: TextIO, err: TextIO) -> int:
    try:
        content = checked(asked.file, partial(read_rules, asked.file), err)
    except CheckFailed as failed:
        return failed.status
    if not asked.topic:
        out.write(f"{asked.file} is valid; entries: {len(content.rules)}\n")
        return VALID
    found = [it for it in content.rules if it.rule.is_of(asked.topic)]
    if not asked.body:
        out.write(f"topic {asked.topic}\n")
        out.writelines(f"  line {it.rule.line}: {_words_for(it)}\n" for it in found)
        if not found:
            out.write("  no entry: bodies are decoded by their content type\n")
        return VALID
    return _decode(asked, content, out=out, err=err)


def _words_for(it: BuiltRule) -> str:
    how = it.decoder.name if it.decoder is not None else "bodies stay as they are"
    return f"{how}{f', for {it.rule.content_type}' if it.rule.content_type else ''}"


def _decode(asked: CheckOptions, content: RulesFile, *, out: TextIO, err: TextIO) -> int:
    kind = asked.content_type.lower()
    decoder = next((it.decoder for it in content.rules if it.rule.applies_to(asked.topic, kind)), None)
    if decoder is None:
        err.write(f"{asked.file}: no entry decodes this body of {asked.topic}\n")
        return INVALID
    try:
        body = Path(asked.body).read_bytes()
    except OSError as error:
        err.write(f"{asked.body}: {(error.strerror or str(error)).lower()}\n")
        return NOT_READ
    try:
        readable, remark = decoder.read(body), decoder.remark(body)
    except Undecodable as error:
        err.write(f"{asked.body}: {error}\n")
        return INVALID
    out.write(f"{readable.decode('utf-8', 'backslashreplace')}\n")
    if remark:
        err.write(f"{asked.body}: {remark}\n")
    return VALID
