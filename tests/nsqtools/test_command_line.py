"""The grammar of the tools' flags: the message of each mistake, its stream, and the exit status."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio

from nsqcommon.durations import SECOND, Nanoseconds
from nsqcommon.options import DURATION, option
from nsqcommon.startup import StartupError
from nsqcommon.version import suite_version
from nsqtools import flags
from nsqtools.command import OutputClosed, ToolFailed, ToolOptions, run_tool

pytestmark = pytest.mark.usefixtures("restored_logging")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ToolOptions):
    max_in_flight: int = option(200, "how many")
    count: int | None = option(None, "how often", kind=flags.COUNT)
    sample: float = option(1.0, "share")
    pause: Nanoseconds = option(2 * SECOND, "rest", kind=DURATION)
    print_topic: bool = option(False, "print it")
    topic: tuple[str, ...] = option((), "topics")

    def check(self) -> None:
        if not self.topic:
            raise StartupError("--topic required")


seen: list[Options] = []


async def run(options: Options, stop: trio.Event) -> int:
    seen.append(options)
    return 0


def call(*argv: str) -> int:
    seen.clear()
    return run_tool("nsq_thing", Options, run, argv=argv)


def test_one_dash_or_two_and_either_form_of_value() -> None:
    assert call("-topic", "a", "--topic=b,c", "-max-in-flight=0x10", "--print-topic", "--pause", "1m30s") == 0
    (options,) = seen
    assert options.topic == ("a", "b,c")
    assert (options.max_in_flight, options.print_topic, options.pause) == (16, True, 90 * SECOND)


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("1e-1", 0.1), (".5", 0.5), ("5.", 5.0), ("-2", -2.0), ("+1E2", 100.0)]
)
def test_floats(text: str, value: float) -> None:
    assert call("--topic=a", f"--sample={text}") == 0
    assert seen[0].sample == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-nope"], "flag provided but not defined: -nope"),
        (["--config=x"], "flag provided but not defined: -config"),
        (["-topic"], "flag needs an argument: -topic"),
        (["---x"], "bad flag syntax: ---x"),
        (["--=x"], "bad flag syntax: --=x"),
        (["--max-in-flight=abc"], 'invalid value "abc" for flag -max-in-flight: parse error'),
        (["--max-in-flight=1e2"], 'invalid value "1e2" for flag -max-in-flight: parse error'),
        (
            ["--max-in-flight=9223372036854775808"],
            'invalid value "9223372036854775808" for flag -max-in-flight: value out of range',
        ),
        (["--pause=30"], 'invalid value "30" for flag -pause: expected a duration such as 500ms, 90s, 1h30m or 7d'),
        (["--sample=x"], 'invalid value "x" for flag -sample: parse error'),
        (["--sample=1_0"], 'invalid value "1_0" for flag -sample: parse error'),
        (["--sample=1e999"], 'invalid value "1e999" for flag -sample: value out of range'),
        (["--print-topic=zz"], 'invalid boolean value "zz" for -print-topic: parse error'),
        (["--count=abc"], 'invalid value "abc" for flag -count: strconv.ParseInt: parsing "abc": invalid syntax'),
        (["--count=0x10"], 'invalid value "0x10" for flag -count: strconv.ParseInt: parsing "0x10": invalid syntax'),
        (
            ["--count=2147483648"],
            'invalid value "2147483648" for flag -count: strconv.ParseInt: parsing "2147483648": value out of range',
        ),
    ],
)
def test_a_wrong_flag_gives_the_reason_in_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*argv) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"nsq_thing: {message}; see nsq_thing --help\n")
    assert not seen


@pytest.mark.parametrize("flag", ["-h", "--help", "-help"])
def test_help_is_on_standard_output(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(flag, "--nonsense") == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage of nsq_thing:\n  --count int\n    \thow often\n  --help\n")
    assert "  --pause duration\n    \trest (default 2s)\n" in out
    assert "  --print-topic\n    \tprint it\n" in out
    assert "  --sample float\n    \tshare (default 1)\n" in out
    assert "Exit status: 0 " in out
    assert err == ""


def test_version_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"nsq_thing v1.3.0 (nsq-suite {suite_version()})\n"


@pytest.mark.parametrize("argv", [["xx", "yy"], ["--topic=a", "xx", "yy"], ["--version", "--", "xx", "yy"]])
def test_what_is_left_over_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*argv) == 1
    out, err = capsys.readouterr()
    assert (out, err[20:]) == ("", "unknown arguments: [xx yy]\n")


def test_a_dash_alone_is_a_word_and_two_end_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--topic=a", "--") == 0
    assert call("--topic=a", "-", "--nope") == 1
    assert capsys.readouterr().err[20:] == "unknown arguments: [- --nope]\n"


def test_a_failed_check_is_one_line_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err[4] == "/"
    assert err[20:] == "--topic required\n"


@pytest.mark.parametrize(
    ("error", "status", "line"), [(ToolFailed("no\nway"), 1, "no\\nway\n"), (OutputClosed(), 141, "")]
)
def test_how_a_tool_ends_that_cannot_go_on(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(options: Options, stop: trio.Event) -> int:
        async with trio.open_nursery():
            raise error

    assert run_tool("nsq_thing", Options, fail, argv=["--topic=a"]) == status
    assert capsys.readouterr().err[20:] == line
