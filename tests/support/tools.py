"""The command line tools as real processes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import forked
from tests.support.process import PYTHON, PYTHONPATH

LIMIT: Final = 30.0  # seconds that a tool may take for anything that a test demands


def _command(tool: str, arguments: tuple[str, ...], program: Path | None) -> list[str]:
    return [*([str(program)] if program else [PYTHON, "-P", "-m", "nsqtools", tool]), *arguments]


def _environ(environ: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, **(environ or {})}


def run_tool(
    tool: str,
    *arguments: str,
    input: bytes = b"",
    environ: Mapping[str, str] | None = None,
    program: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a tool that ends by itself. `program`: another one, instead of ours."""
    return forked.run(_command(tool, arguments, program), env=_environ(environ), input=input, timeout=LIMIT)


class Tool:
    """A tool that runs until it is told to stop. Its output is collected meanwhile."""

    def __init__(
        self,
        tool: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        stdin: bool = False,
        program: Path | None = None,
    ) -> None:
        self.process: forked.Popen[bytes] = forked.Popen(
            _command(tool, arguments, program),
            env=_environ(environ),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._out = bytearray()
        self._err = bytearray()
        self._collectors = [
            threading.Thread(target=self._collect, args=(pipe, into), daemon=True)
            for pipe, into in ((self.process.stdout, self._out), (self.process.stderr, self._err))
        ]
        for collector in self._collectors:
            collector.start()

    @staticmethod
    def _collect(pipe: object, into: bytearray) -> None:
        while data := os.read(pipe.fileno(), 65536):  # type: ignore[attr-defined]  # a pipe of Popen's
            into += data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.wait()

    @property
    def out(self) -> bytes:
        return bytes(self._out)

    @property
    def log(self) -> str:
        return self._err.decode("utf-8", "backslashreplace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.log}") from None
        for collector in self._collectors:
            collector.join(LIMIT)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return status

    def stop(self, number: int) -> int:
        self.signal(number)
        return self.wait()

    def wait_for_log(self, text: str) -> str:
        """Wait until the text is in the log, and return the log."""
        deadline = time.monotonic() + LIMIT
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            if self.process.poll() is not None:
                self.wait()
                assert text in self.log, self.log
            time.sleep(0.01)
        return self.log


def address(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"


def last_line(said: bytes) -> str:
    """Return the last line of stderr, without its time."""
    return said.decode().rstrip("\n").rpartition("\n")[2][20:]
