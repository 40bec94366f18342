"""A standalone Spark cluster on this machine: a master and workers, run from the pyspark wheel."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import pyspark

from nsqpipe import shared_classes
from tests.spark.kill9 import processes_of_session, suppressed
from tests.support.process import eventually

_CLASS: Final = "org.apache.spark.deploy"
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE: Final = 120.0
_SPARK: Final = Path(pyspark.__file__).parent
_NSQPIPE: Final = Path(sys.executable).parent / "nsqpipe"  # as pip has installed it
# Neither our interpreter nor our tree is on it: what workers need has to come with the job.
_PATH: Final = os.pathsep.join(
    dict.fromkeys([str(Path(shutil.which("java") or "/usr/bin/java").parent), "/usr/bin", "/bin"])
)
# Of the environment only tests/conftest.py's settings of JVMs are kept. They go to each of the ten that start, so the
# archive of Spark's classes is named there, and not only to the driver.
_FLAGS: Final = {shared_classes.VARIABLE: os.environ.get("JDK_JAVA_OPTIONS", "")}
_ENVIRON: Final = {
    "PATH": _PATH,
    "JDK_JAVA_OPTIONS": {**_FLAGS, **shared_classes.environment(given=_FLAGS)}[shared_classes.VARIABLE],
}

Process = subprocess.Popen[bytes]


class Cluster:
    """A cluster. Each of its processes leads a session, by which its child processes are found."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        eventually(lambda: _MASTER.search(log.read_text()) is not None, timeout=_PATIENCE)
        found = _MASTER.search(log.read_text())
        assert found is not None
        self.url = found[1]
        for number in range(self._workers):
            where = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._folder / f"work{number}"))
            self._start(f"worker{number}", "worker.Worker", *where, "--cores", "1", "--memory", "600m", self.url)
        eventually(lambda: log.read_text().count("Registering worker") == self._workers, timeout=_PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self._kill(processes_of_session(process.pid))
            process.wait(30)

    def submit(self, *job: str, conf: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> Process:
        """Run `nsqpipe submit` as documented, from an environment without any settings of Spark.

        It is small enough for our workers. `defaults` are those of `spark-defaults.conf`.
        """
        settings = (
            *("spark.executor.memory=512m", "spark.driver.memory=512m", "spark.driver.host=127.0.0.1"),
            *("spark.task.maxFailures=20", "spark.deploy.maxExecutorRetries=-1", *conf),
        )
        words = [text for setting in settings for text in ("--conf", setting)]
        command = [str(_NSQPIPE), "submit", "--master", self.url, *words, "--", *job]
        environ = {**_ENVIRON, "HOME": str(self._folder)}
        if defaults:
            (self._folder / "conf").mkdir()
            lines = [f"{name} {value}\n" for name, value in defaults.items()]
            (self._folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
            environ["SPARK_CONF_DIR"] = str(self._folder / "conf")
        with (self._folder / "job.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    @property
    def job_log(self) -> str:
        return (self._folder / "job.log").read_text()

    def kill_executor(self, worker: int) -> bool:
        """Kill the JVM of an executor; its Python workers end with it."""
        return self._kill(self._of_worker(worker, "CoarseGrainedExecutorBackend"))

    def kill_python(self, worker: int) -> bool:
        """Kill the Python processes of a worker's executor, and the one that starts them."""
        return self._kill(self._of_worker(worker, "pyspark.daemon"))

    def kill_worker(self, worker: int) -> bool:
        """Kill all of a worker, as if its machine was lost."""
        return self._kill(processes_of_session(self._processes[1 + worker].pid))

    def _of_worker(self, worker: int, word: str) -> list[int]:
        session = self._processes[1 + worker].pid
        return [pid for pid in processes_of_session(session) if word in _command(pid)]

    def _start(self, name: str, program: str, *words: str) -> Path:
        path = self._folder / f"{name}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [str(_SPARK / "bin" / "spark-class"), f"{_CLASS}.{program}", *words],
                cwd=self._folder,
                env={**_ENVIRON, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return path

    def _kill(self, pids: list[int]) -> bool:
        for pid in pids:
            with suppressed():
                os.kill(pid, signal.SIGKILL)
        return bool(pids)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
