"""The means of a benchmark: a temporary folder, the compiled load generator, and processes that end with it.

Nothing outlives a `Work`: its processes are killed by their own id, even if the benchmark is killed, and its folder is
removed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
RIVALS: Final = ROOT / "build" / "rivals"  # brokers that scripts/bring-rivals has brought
HOST: Final = "127.0.0.1"
COMPILERS: Final = "cc, gcc or clang"
SLACK: Final = 60.0  # seconds that a load generator may take beyond its set time

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


class Failed(Exception):
    """A benchmark could not be carried out; the text says why."""


class Load(dict[str, float]):
    """The output of a run of the load generator. Reading a key that it did not print is a bug in the caller."""

    status: int = 0


class Work:
    def __init__(self, folder: Path, loadgen: Path, load_cores: set[int]) -> None:
        self.folder = folder
        self.loadgen = loadgen
        self._load_cores = load_cores
        self._made = 0

    @classmethod
    @contextmanager
    def open(cls, parent: Path | None = None, *, pin: bool = False) -> Iterator[Work]:
        """Compile the load generator into a new folder.

        `pin`: it gets the last core for itself, everything else the others.
        """
        with tempfile.TemporaryDirectory(prefix="nsq-bench-", dir=parent) as name:
            folder = Path(name)
            loadgen = compiled(folder / "loadgen", HERE / "loadgen.c")
            cores = os.sched_getaffinity(0)
            if not pin:
                yield cls(folder, loadgen, cores)
                return
            if len(cores) < 2:
                raise Failed("--pin needs two cores")
            os.sched_setaffinity(0, cores - {max(cores)})  # child processes inherit this
            try:
                yield cls(folder, loadgen, {max(cores)})
            finally:
                os.sched_setaffinity(0, cores)

    @contextmanager
    def new_folder(self, name: str) -> Iterator[Path]:
        """Make an empty folder. The end of the block removes it, as a hundred runs would fill the disk."""
        self._made += 1
        folder = self.folder / f"{name}-{self._made}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(self, mode: str, port: int, *arguments: object, at_most: float, allow: tuple[int, ...] = (0,)) -> Load:
        """Run the load generator to its end, which should come after `at_most` seconds."""
        command = self._command(mode, port, arguments)
        with ExitStack() as stack:
            process = stack.enter_context(started(command, stdout=subprocess.PIPE, cores=self._load_cores))
            try:
                out, _ = process.communicate(timeout=at_most + SLACK)
            except subprocess.TimeoutExpired:
                raise Failed(f"loadgen {mode} did not end in {at_most + SLACK:.0f} seconds") from None
        if process.returncode not in allow:
            raise Failed(f"loadgen {' '.join(command[1:])}: status {process.returncode}, {out.decode().strip()}")
        return parsed(out, process.returncode)

    def python(self, module: str, *arguments: object, at_most: float) -> Load:
        """Run a load generator in Python to its end, which should come after `at_most` seconds."""
        command = [sys.executable, "-m", module, *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=at_most + SLACK,
        )
        if done.returncode or not done.stdout:
            raise Failed(f"{' '.join(command[1:])}: {done.stderr.decode().strip()}")
        return parsed(done.stdout, 0)

    @contextmanager
    def loading(self, mode: str, port: int, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """Run the load generator beside the block, and kill it at the end if it still runs."""
        command = self._command(mode, port, arguments)
        with started(command, stdout=subprocess.PIPE, cores=self._load_cores) as process:
            yield process

    def _command(self, mode: str, port: int, arguments: tuple[object, ...]) -> list[str]:
        return [str(self.loadgen), mode, HOST, str(port), *map(str, arguments)]


def c_compiler() -> str:
    """Return the path of a C compiler. Empty: there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""


def compiled(program: Path, *words: str | Path) -> Path:
    """Compile a load generator of these sources, perhaps with flags."""
    compiler = c_compiler()
    if not compiler:
        raise Failed(f"the load generator needs a C compiler: {COMPILERS}")
    subprocess.run((compiler, "-O2", "-o", program, *words), check=True, timeout=120)
    return program


def parsed(out: bytes, status: int) -> Load:
    """Parse the numbers in the last line that the load generator printed."""
    load = Load()
    load.status = status
    for pair in out.decode().strip().rpartition("\n")[2].split():
        key, _, value = pair.partition("=")
        if key != "mode":
            load[key] = float(value)
    return load


@contextmanager
def started(
    command: list[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cores: set[int] | None = None,
    new_session: bool = False,
    cwd: Path = ROOT,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is killed when the block ends, or when we die before that."""

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=before_exec,
        start_new_session=new_session,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def say(text: str) -> None:
    """Print progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)
