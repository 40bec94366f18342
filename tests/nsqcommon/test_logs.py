from __future__ import annotations

import io
import json
import logging
import re

import pytest

from nsqcommon.logs import LogLevel, configure, set_level

ours = logging.getLogger("nsqd.test")
theirs = logging.getLogger("library.test")


pytestmark = pytest.mark.usefixtures("restored_logging")


def test_a_line_is_as_nsq_writes_it() -> None:
    out = io.StringIO()
    configure(prefix="[nsqd] ", level=LogLevel.INFO, stream=out)
    ours.info("TCP: listening on %s", "[::]:4150")
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on \[::\]:4150\n", out.getvalue()
    )


@pytest.mark.parametrize(
    ("level", "word"), [(10, "DEBUG"), (20, "INFO"), (30, "WARNING"), (40, "ERROR"), (50, "FATAL")]
)
def test_levels_have_nsqs_words(level: int, word: str) -> None:
    out = io.StringIO()
    configure(prefix="", level=LogLevel.DEBUG, stream=out)
    ours.log(level, "it")
    assert out.getvalue().endswith(f" {word}: it\n")


def test_a_message_cannot_forge_a_line() -> None:
    out = io.StringIO()
    configure(prefix="", level=LogLevel.INFO, stream=out)
    ours.info("client said %s", "x\r\n[nsqd] FATAL: y")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("client said x\\r\\n[nsqd] FATAL: y\n")


def test_a_traceback_follows_the_line() -> None:
    out = io.StringIO()
    configure(prefix="", level=LogLevel.INFO, stream=out)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        ours.exception("it failed")
    assert " ERROR: it failed\nTraceback (most recent call last):\n" in out.getvalue()
    assert out.getvalue().endswith("RuntimeError: broken\n")


def test_json_lines_are_whole_objects() -> None:
    out = io.StringIO()
    configure(prefix="ignored", level=LogLevel.INFO, log_format="json", stream=out)
    ours.warning("two\nlines %s", "é")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        ours.critical("end", exc_info=True)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", first.pop("ts"))
    assert first == {"level": "warning", "logger": "nsqd.test", "message": "two\nlines é"}
    assert second["level"] == "fatal"
    assert second["exception"].endswith("RuntimeError: broken")


def test_the_level_can_be_changed_while_running() -> None:
    out = io.StringIO()
    configure(prefix="", level=LogLevel.ERROR, stream=out)
    ours.info("one")
    set_level(LogLevel.DEBUG)
    ours.debug("two")
    set_level(LogLevel.FATAL)
    ours.error("three")
    assert out.getvalue().endswith("DEBUG: two\n")
    assert out.getvalue().count("\n") == 1


def test_libraries_speak_only_of_trouble() -> None:
    out = io.StringIO()
    configure(prefix="", level=LogLevel.DEBUG, stream=out)
    theirs.info("chatter")
    theirs.warning("trouble")
    assert out.getvalue().endswith("WARNING: trouble\n")
    assert out.getvalue().count("\n") == 1


def test_the_last_configuration_holds() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(prefix="", level=LogLevel.INFO, stream=first)
    configure(prefix="", level=LogLevel.INFO, stream=second)
    ours.info("it")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize("word", ["debug", "INFO", "Warn", "error", "fatal"])
def test_levels_are_read_in_any_case(word: str) -> None:
    assert LogLevel.parse(word).word == word.lower()


@pytest.mark.parametrize("word", ["warning", "", "1", "__class__", " info"])
def test_other_levels_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"\(debug, info, warn, error, fatal\)$"):
        LogLevel.parse(word)
