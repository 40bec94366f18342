"""Help, version and signals, which are alike in every tool."""

from __future__ import annotations

import importlib
import signal
import tomllib
from pathlib import Path

import pytest

from nsqcommon.options import table_of
from nsqcommon.version import suite_version
from tests.support.process import Nsqd, eventually
from tests.support.tools import Tool, address, run_tool

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = [name for name, target in PROJECT["scripts"].items() if target == f"nsqtools.cli:{name}"]


def test_these_are_all_tools() -> None:
    assert {
        "nsq_stat",
        "nsq_tail",
        "nsq_to_file",
        "nsq_to_http",
        "nsq_to_nsq",
        "to_nsq",
        "outbox_to_nsq",
        "nsq_replay",
        "nsq_bench",
        "nsq_dead",
        "nsq_deferred",
    } == {*TOOLS}


@pytest.mark.parametrize("tool", TOOLS)
def test_help_has_every_flag_and_what_it_is_for(tool: str) -> None:
    result = run_tool(tool, "--help")
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode()
    assert text.startswith(f"Usage of {tool}:\n")
    for row in table_of(importlib.import_module(f"nsqtools.{tool}").Options):
        assert row.help
        assert f"  --{row.flag} {row.kind.word}".rstrip() + f"\n    \t{row.help}" in text, row.flag
    assert "Exit status" in text


@pytest.mark.parametrize("tool", TOOLS)
def test_the_version(tool: str) -> None:
    result = run_tool(tool, "--version")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        f"{tool} v1.3.0 (nsq-suite {suite_version()})\n".encode(),
        b"",
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_a_flag_that_there_is_not(tool: str) -> None:
    result = run_tool(tool, "-nope")
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.decode() == f"{tool}: flag provided but not defined: -nope; see {tool} --help\n"


def has_ended_by(tool: Tool, number: signal.Signals) -> bool:
    """Return whether the tool has ended; if not, send one more signal, as two that come together may count as one."""
    if tool.process.poll() is None:
        tool.signal(number)
    return tool.process.poll() is not None


def test_a_second_signal_ends_it_at_once(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    place = f"--nsqd-tcp-address={address(nsqd.tcp)}"
    with Tool("nsq_to_http", f"--topic={topic}", "--channel=c", place, "--post=http://127.0.0.1:9/") as tool:
        tool.wait_for_log("connected to nsqd")
        # Its nsqd is silent now, so the tool waits for an answer.
        nsqd.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: has_ended_by(tool, signal.SIGINT))
            assert tool.wait() == 130
        finally:
            nsqd.send_signal(signal.SIGCONT)
