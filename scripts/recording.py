"""The recorded quick start: a real bash in a real terminal runs the commands of STORY, and what it shows is kept.

bash runs in namespaces of its own: it has the broker's usual ports, sees no other processes, and its own end with it.
Its folder is an empty one, shown as ~/nsq, in which `scripts` and `.venv` are those of this tree. The recording is an
asciicast (https://docs.asciinema.org/manual/asciicast/v2/), which other players show, too.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from scripts import drawing
from scripts.command_line import option, read_options
from tests.docs import world

ROOT: Final = Path(__file__).resolve().parent.parent
CAST: Final = drawing.FOLDER / "quick-start.cast"
COLUMNS: Final = 100
ROWS: Final = 24
LIMIT: Final = 60.0  # seconds for one step
LONGEST_PAUSE: Final = 1.5  # seconds that a player shows where nothing happened for longer
PROMPT: Final = "\x1b[32m~/nsq\x1b[0m$ "
# Parentheses, because bash tells of its own jobs: their process ids, and at some time or other their ends.
_START: Final = "(scripts/run-broker &> broker.log &)"


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    until: str = ""  # what has to be seen before the next step, besides the prompt
    ready: bool = False  # whether the next step needs the broker's ports
    kills: bool = False  # whether the broker has to be gone before the next step


STORY: Final = (
    Step("# Start the broker, and publish two orders."),
    Step(_START, ready=True),
    Step("curl -d 'one kettle' 'http://127.0.0.1:4151/pub?topic=orders'", "OK"),
    Step("curl -d 'two lamps' 'http://127.0.0.1:4151/pub?topic=orders'", "OK"),
    Step("# Kill it without warning, and start it again."),
    Step("pkill -9 nsqd", kills=True),
    Step(_START, ready=True),
    Step("# Both orders were answered with OK, so both are still there."),
    Step("nsq_tail --nsqd-tcp-address=127.0.0.1:4150 --topic=orders --channel=billing -n 2 2> log", "two lamps"),
)


@dataclass(slots=True)
class Recording:
    """What the terminal showed, and when."""

    events: list[tuple[float, str]] = field(default_factory=list)
    _begun: float = field(default_factory=time.monotonic)

    def add(self, text: str) -> None:
        if text:
            self.events.append((round(time.monotonic() - self._begun, 3), text))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.events)

    def cast(self) -> str:
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "idle_time_limit": LONGEST_PAUSE}
        events = [json.dumps([at, "o", text]) for at, text in self.events]
        return "\n".join([json.dumps(header), *events]) + "\n"


def shown_by(cast: str) -> str:
    """Return all that a recording shows, without the times."""
    return "".join(json.loads(line)[2] for line in cast.splitlines()[1:])


class Typist:
    """Types the commands of a story into a terminal, and waits for what they show."""

    def __init__(self, terminal: int, *, pause: float) -> None:
        self.recording = Recording()
        self._terminal = terminal
        self._pause = pause  # seconds between two keys
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def play(self, story: Sequence[Step]) -> None:
        self._read_until(lambda shown: shown.endswith(PROMPT), 0, "a prompt")
        for step in story:
            begin = len(self.recording.text)
            self._enter(step.command)
            self._rest(8)
            self._type("\r")
            self._read_until(partial(_is_done, step), begin, step.until or "a prompt")
            if step.ready:
                _wait_for_broker()
            if step.kills:
                _wait_for_end_of_broker()
            self._rest(20)

    def _enter(self, command: str) -> None:
        # A comment is there at once, as nobody wants to wait for it.
        for keys in [command] if command.startswith("#") else command:
            self._type(keys)

    def _type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())
        self._rest(1)

    def _rest(self, keys: int) -> None:
        """Record what comes in the time in which somebody would press some keys."""
        end = time.monotonic() + keys * self._pause
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def _read_until(self, is_done: Callable[[str], bool], begin: int, what: str) -> None:
        end = time.monotonic() + LIMIT
        while not is_done(self.recording.text[begin:]):
            if time.monotonic() > end:
                raise TimeoutError(f"the terminal has not shown {what}:\n{self.recording.text}")
            self._read(0.1)

    def _read(self, seconds: float) -> None:
        if select.select([self._terminal], [], [], seconds)[0]:
            self.recording.add(self._decoder.decode(os.read(self._terminal, 65536)))


def _is_done(step: Step, shown: str) -> bool:
    _, echoed, answer = shown.partition("\r\n")
    return bool(echoed) and answer.endswith(PROMPT) and step.until in answer


def _wait_for_broker() -> None:
    end = time.monotonic() + LIMIT
    for port in (4150, 4151):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=LIMIT).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def _wait_for_end_of_broker() -> None:
    """Wait for the only process that has lost its parent, and has got the first one of the namespace: this one."""
    end = time.monotonic() + LIMIT
    while os.waitpid(-1, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            raise TimeoutError("the broker has not ended")
        time.sleep(0.01)


# The room in which it happens


def record(*, pause: float) -> str:
    """Return the recording. Raise RuntimeError, with the reason, if a command did not do what the story says."""
    with tempfile.TemporaryDirectory(prefix="nsq-recording-") as home:
        command = [*world.unshare(), sys.executable, "-m", "scripts.recording", "--inside", home, "--pause", str(pause)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _record_inside(home: Path, pause: float) -> str:
    if os.getpid() != 1:
        raise RuntimeError("the story kills every nsqd that it can see, so it is only told in a namespace of its own")
    socket.sethostname("broker")
    world.start_loopback()
    with _terminal(home) as terminal:
        typist = Typist(terminal, pause=pause)
        typist.play(STORY)
        return typist.recording.cast()


@contextmanager
def _terminal(home: Path) -> Iterator[int]:
    folder = home / "nsq"
    folder.mkdir()
    for name in ("scripts", ".venv", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (home / ".inputrc").write_text("set enable-bracketed-paste off\n", encoding="utf-8")
    (home / ".curlrc").write_text('write-out = "\\n"\n', encoding="utf-8")  # so that a prompt begins its line
    environment = {
        "HOME": str(home),
        "PATH": f"{folder}/.venv/bin:/usr/bin:/bin",
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "PS1": re.sub(r"\x1b\[\d+m", r"\\[\g<0>\\]", PROMPT),  # in which readline counts no colours
        "PYTHONPATH": str(ROOT),
        "NSQ_COMPILE": "0",  # a compiled broker shows the same, and nobody has to wait for the compiler
    }
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))  # before bash looks
        os.chdir(folder)
        os.execve("/bin/bash", ["bash", "--noprofile", "--norc", "-i"], environment)
    try:
        yield terminal
    finally:
        os.close(terminal)
        os.waitpid(process, 0)  # a bash whose terminal is gone ends


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    pause: float = option(0.03, "seconds between two keys")
    inside: Path | None = option(None, is_hidden=True)


def main() -> int:
    about = "Record the quick start in a terminal, and draw it: docs/pictures/quick-start.cast and .svg."
    chosen = read_options(RecordingOptions, name="scripts/make-recording", about=about)
    if chosen.inside:
        sys.stdout.write(_record_inside(chosen.inside, chosen.pause))
        return 0
    try:
        CAST.write_text(record(pause=chosen.pause), encoding="utf-8")
    except RuntimeError as error:
        print(f"make-recording: {error}", file=sys.stderr)
        return 1
    return drawing.main()


if __name__ == "__main__":
    sys.exit(main())
