"""A small table of options, read from flags, environment and file as any daemon's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqcommon.logs import LogLevel
from nsqcommon.options import (
    DURATION,
    FLOATS,
    HOUR,
    MILLISECOND,
    SECOND,
    BaseOptions,
    HelpRequested,
    Nanoseconds,
    UsageError,
    VersionRequested,
    change,
    format_value,
    one_of,
    option,
    parse,
    read_flags,
    variable_of,
)
from nsqcommon.startup import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    tcp_address: str = option("0.0.0.0:4150", "where to listen")
    max_size: int = option(100, "largest thing", at_least=1)
    level: int = option(6, "how hard to try", at_least=1, at_most=9)
    node_id: int = option(5, "which node", toml="id", at_least=0, below=1024)
    pause: Nanoseconds = option(2 * SECOND, "how long to rest", kind=DURATION, at_least=1)
    deflate: bool = option(True, "make it smaller")
    peer: tuple[str, ...] = option((), "who else", toml="peer_addresses", at_run_time=True)
    percentile: tuple[float, ...] = option((), "what to watch", kind=FLOATS, toml="percentiles")
    mode: str = option("fast", "in which way", kind=one_of("fast", "safe"))
    old: bool = option(False, "nothing", deprecated=True)


def read(*argv: str, **environ: str) -> Options:
    return parse(Options, argv, environ, "thing")


def read_file(tmp_path: Path, text: str, *argv: str, **environ: str) -> Options:
    file = tmp_path / "thing.toml"
    file.write_text(text)
    return read(f"--config={file}", *argv, **environ)


# --- the command line


@pytest.mark.parametrize(
    "argv",
    [["-max-size=7"], ["--max-size=7"], ["-max-size", "7"], ["--max-size", "7"], ["--max-size=1", "--max-size=7"]],
)
def test_a_flag_has_one_dash_or_two_and_the_last_one_wins(argv: list[str]) -> None:
    assert read(*argv).max_size == 7


@pytest.mark.parametrize(
    ("text", "number"), [("0x1f", 31), ("0X1F", 31), ("0o17", 15), ("017", 15), ("0b11", 3), ("1_000", 1000), ("+3", 3)]
)
def test_integers_are_read_as_go_reads_them(text: str, number: int) -> None:
    assert read("--max-size", text).max_size == number


@pytest.mark.parametrize("text", ["", "x", "1.0", "1__0", "_1", " 1", "09", "٣", "1e3"])
def test_other_integers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f'^invalid value "{text}" for flag -max-size: parse error$'):
        read("--max-size", text)


def test_an_integer_has_64_bits() -> None:
    with pytest.raises(
        UsageError, match=r'^invalid value "9223372036854775808" for flag -max-size: value out of range$'
    ):
        read("--max-size=9223372036854775808")


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_words_for_true(word: str) -> None:
    assert read(f"--deflate={word}").deflate


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_words_for_false(word: str) -> None:
    assert not read(f"--deflate={word}").deflate


@pytest.mark.parametrize(
    ("argv", "argument"),
    [
        (["extra"], "extra"),
        (["--deflate", "false", "--max-size=7"], "false"),
        (["--max-size=3", "-", "--max-size=7"], "-"),
        (["--max-size=3", "--", "--max-size=7"], "--max-size=7"),
        (["", "--max-size=7"], ""),
    ],
)
def test_an_argument_is_refused_because_all_flags_after_it_would_be_ignored(argv: list[str], argument: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(*argv)
    assert refused.value.message == f'unexpected argument "{argument}"'


@pytest.mark.parametrize("end", ["--", ""])
def test_nothing_may_follow_the_flags(end: str) -> None:
    assert read("--max-size=3", end).max_size == 3


def test_a_value_may_look_like_a_flag() -> None:
    assert read("--tcp-address", "--max-size=7").tcp_address == "--max-size=7"


def test_list_flags_accumulate() -> None:
    assert read("--peer=a:1", "--peer", "b:2,c:3").peer == ("a:1", "b:2,c:3")


def test_a_list_of_numbers_may_also_have_commas() -> None:
    assert read("--percentile=0.9,0.5", "--percentile=1").percentile == (1.0, 0.9, 0.5)


def test_a_tool_reads_no_file() -> None:
    with pytest.raises(UsageError, match="flag provided but not defined: -config"):
        read_flags(Options, ["--config=thing.toml"], "tool")
    assert read_flags(Options, ["--max-size=7", "rest"], "tool").options.max_size == 7


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--x=3"], "flag provided but not defined: -x"),
        (["--max-size"], "flag needs an argument: -max-size"),
        (["--config"], "flag needs an argument: -config"),
        (["--=3"], "bad flag syntax: --=3"),
        (["---x"], "bad flag syntax: ---x"),
        (["--deflate=2"], 'invalid boolean value "2" for -deflate: parse error'),
        (["--version=x"], 'invalid boolean value "x" for -version: parse error'),
        (["--pause=5"], 'invalid value "5" for flag -pause: expected a duration such as 500ms, 90s, 1h30m or 7d'),
        (["--mode=slow"], 'invalid value "slow" for flag -mode: must be one of fast, safe'),
        (
            ["--log-level=warning"],
            'invalid value "warning" for flag -log-level: '
            "invalid log level 'warning' (debug, info, warn, error, fatal)",
        ),
        (["--max-size=\n\udcff"], r'invalid value "\n\xff" for flag -max-size: parse error'),
    ],
)
def test_a_wrong_command_line_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(*argv)
    assert refused.value.message == message
    assert refused.value.exit_status == 2
    assert refused.value.line("thing") == f"thing: {message}; see thing --help"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("max-sise", "max-size"),
        ("tcp_address", "tcp-address"),
        ("confg", "config"),
        ("halp", "help"),
        ("verson", "version"),
    ],
)
def test_a_wrong_flag_names_the_one_that_was_probably_meant(flag: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(f"--{flag}=3")
    assert refused.value.message == f"flag provided but not defined: -{flag} (did you mean --{meant}?)"


@pytest.mark.parametrize(("text", "duration"), [("7d", 7 * 24 * HOUR), ("1d12h", 36 * HOUR), ("90m", 90 * 60 * SECOND)])
def test_a_duration_may_have_days(text: str, duration: int, tmp_path: Path) -> None:
    assert read(f"--pause={text}").pause == duration
    (tmp_path / "thing.toml").write_text(f'pause = "{text}"')
    assert read(f"--config={tmp_path / 'thing.toml'}").pause == duration


def test_help_has_the_form_of_durations() -> None:
    with pytest.raises(HelpRequested, match=r"A duration has units, such as 500ms, 90s, 1h30m or 7d\."):
        read("--help")


@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help"])
def test_help_is_given_before_anything_else_is_looked_at(flag: str) -> None:
    with pytest.raises(HelpRequested) as help:
        read(flag, "--nonsense")
    assert "  --max-size int\n    \tlargest thing (default 100)\n" in help.value.usage
    assert '  --tcp-address string\n    \twhere to listen (default "0.0.0.0:4150")\n' in help.value.usage
    assert "  --pause duration\n    \thow long to rest (default 2s)\n" in help.value.usage
    assert "  --peer value\n    \twho else (may be given multiple times)\n" in help.value.usage
    assert "  --old\n    \tdeprecated, no effect: nothing\n" in help.value.usage


def test_version_is_given_unless_the_line_is_wrong() -> None:
    with pytest.raises(VersionRequested):
        read("--version", "--max-size=0")
    with pytest.raises(UsageError):
        read("--version", "--nonsense")
    assert read("--version=false") == Options()


# --- which source counts


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = 'max_size = 2\nlevel = 2\ntcp_address = "file:1"'
    options = read_file(tmp_path, file, "--max-size=4", THING_MAX_SIZE="3", THING_LEVEL="3")
    assert (options.max_size, options.level, options.tcp_address, options.mode) == (4, 3, "file:1", "fast")


def test_a_list_on_the_command_line_replaces_the_other_lists(tmp_path: Path) -> None:
    options = read_file(tmp_path, 'peer_addresses = ["file:1"]', "--peer=flag:1", THING_PEER="variable:1")
    assert options.peer == ("flag:1",)


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "thing.toml"
    file.write_text("max_size = 9")
    assert read(THING_CONFIG=str(file)).max_size == 9
    assert read("--config=", THING_CONFIG=str(file)).max_size == 100


def test_a_variable_is_the_flag_in_capitals() -> None:
    assert variable_of("nsqd", "tcp-address") == "NSQD_TCP_ADDRESS"
    assert read(THING_TCP_ADDRESS="").tcp_address == ""
    assert read(THING_PEER="a:1,b:2").peer == ("a:1", "b:2")


def test_variables_that_nobody_knows_are_left_alone() -> None:
    assert read(THING_PORT="tcp://10.0.0.1:4150", THING_SERVICE_HOST="10.0.0.1", THING_OLD="x") == Options()


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(StartupError, match=r'^invalid value "x" for environment variable THING_MAX_SIZE: parse error$'):
        read(THING_MAX_SIZE="x")


# --- the file


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('pause = "1.5s"', "pause", 1500 * MILLISECOND),
        ("pause = 1500", "pause", 1500 * MILLISECOND),
        ("max_size = 7", "max_size", 7),
        ('max_size = "7"', "max_size", 7),
        ("deflate = false", "deflate", False),
        ('deflate = "F"', "deflate", False),
        ("deflate = 0", "deflate", False),
        ("deflate = 1", "deflate", True),
        ("id = 9", "node_id", 9),
        ('peer_addresses = ["a:1", "b:2"]', "peer", ("a:1", "b:2")),
        ('peer_addresses = "a:1,b:2"', "peer", ("a:1", "b:2")),
        ('peer_addresses = ""', "peer", ()),
        ("percentiles = [0.5, 1]", "percentile", (0.5, 1.0)),
        ('percentiles = "0.5,1"', "percentile", (0.5, 1.0)),
        ('log_level = "WARN"', "log_level", LogLevel.WARN),
        ('mode = "safe"', "mode", "safe"),
    ],
)
def test_values_in_the_file(tmp_path: Path, text: str, name: str, value: object) -> None:
    assert getattr(read_file(tmp_path, text), name) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pause = 1.5", "Resolve failed to coerce value 1.5 (2s) for field pause - invalid value type float"),
        (
            'pause = "5"',
            "Resolve failed to coerce value 5 (2s) for field pause - expected a duration such as 500ms, 90s, 1h30m or 7d",
        ),
        ("max_size = true", "Resolve failed to coerce value True (100) for field max_size - invalid value type bool"),
        ('max_size = "0x1"', "Resolve failed to coerce value 0x1 (100) for field max_size - invalid value type str"),
        ("deflate = 2", "Resolve failed to coerce value 2 (true) for field deflate - invalid value type int"),
        (
            "peer_addresses = [1]",
            "Resolve failed to coerce value [1] () for field peer_addresses - invalid value type list",
        ),
        (
            "tcp_address = 1",
            "Resolve failed to coerce value 1 (0.0.0.0:4150) for field tcp_address - invalid value type int",
        ),
        ('log_level = "loud"', "failed parsing log_level loud"),
        ('mode = "slow"', "failed parsing mode slow"),
        ('percentiles = "x"', "Could not parse: x"),
    ],
)
def test_a_bad_value_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StartupError) as refused:
        read_file(tmp_path, text)
    assert str(refused.value) == message


def test_keys_and_tables_that_nobody_knows_are_named_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_file(tmp_path, "node_id = 3\nold = true\n[table]\nmax_size = 3") == Options()
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [
        "node_id",
        "old",
        "table",
    ]


@pytest.mark.parametrize(("text", "cause"), [("max_size =", "Invalid value"), ("=", "Invalid statement")])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(StartupError, match=f"^failed to load config file .*/thing.toml - {cause}"):
        read_file(tmp_path, text)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(StartupError, match=r"^failed to load config file /nowhere - no such file or directory$"):
        read("--config=/nowhere")


# --- checks


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max-size=0", "--max-size must be >= 1"),
        ("--level=10", "--level must be [1,9]"),
        ("--level=0", "--level must be [1,9]"),
        ("--node-id=1024", "--node-id must be [0,1024)"),
        ("--node-id=-1", "--node-id must be [0,1024)"),
        ("--pause=0", "--pause must be > 0"),
    ],
)
def test_a_value_out_of_bounds_is_refused(flag: str, message: str) -> None:
    with pytest.raises(StartupError) as refused:
        read(flag)
    assert str(refused.value) == f"failed to instantiate thing - {message}"


# --- at run time


@pytest.mark.parametrize(
    ("key", "rendered"),
    [
        ("tcp_address", "0.0.0.0:4150"),
        ("max_size", "100"),
        ("id", "5"),
        ("pause", "2000000000"),
        ("deflate", "true"),
        ("peer_addresses", "[]"),
        ("percentiles", "[1,0.99]"),
        ("log_level", "2"),
        ("log_prefix", ""),
    ],
)
def test_values_are_rendered_as_nsq_does(key: str, rendered: str) -> None:
    assert format_value(Options(percentile=(1.0, 0.99)), key) == rendered


@pytest.mark.parametrize("key", ["nope", "node_id", "peer", "old", "version", "config"])
def test_an_unknown_key_has_no_value(key: str) -> None:
    with pytest.raises(KeyError):
        format_value(Options(), key)


def test_a_list_is_rendered_as_json() -> None:
    assert format_value(Options(peer=("a:1", "é<")), "peer_addresses") == '["a:1","é\\u003c"]'


@pytest.mark.parametrize(
    ("key", "text", "rendered"),
    [
        ("log_level", "Debug", "1"),
        ("peer_addresses", '["a:1"]', '["a:1"]'),
        ("peer_addresses", "[]", "[]"),
        ("peer_addresses", "null", "[]"),
    ],
)
def test_some_options_can_be_changed(key: str, text: str, rendered: str) -> None:
    before = Options()
    after = change(before, key, text)
    assert format_value(after, key) == rendered
    assert before == Options()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("log_level", "warning"),
        ("log_level", '"info"'),
        ("log_level", "info\n"),
        ("peer_addresses", "a:1"),
        ("peer_addresses", '"a:1"'),
        ("peer_addresses", "[1]"),
        ("peer_addresses", "{}"),
    ],
)
def test_a_bad_change_is_refused(key: str, text: str) -> None:
    with pytest.raises(ValueError):
        change(Options(), key, text)


@pytest.mark.parametrize("key", ["max_size", "nope", "old"])
def test_other_options_cannot_be_changed(key: str) -> None:
    with pytest.raises(KeyError):
        change(Options(), key, "1")
