"""A standalone Spark cluster on this machine, of a master and workers, from what is in the wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

import pyspark

from tests.spark.kill9 import processes_of_session, suppressed
from tests.support.process import ROOT, eventually

_CLASS: Final = "org.apache.spark.deploy"
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE: Final = 120.0
_SPARK: Final = Path(pyspark.__file__).parent


class Cluster:
    """Each of its processes leads a session, in which its own processes are found."""

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

    def submit(self, *job: str) -> subprocess.Popen[bytes]:
        """`nsqpipe submit`, small enough for our workers."""
        settings = (
            *("spark.executor.memory=512m", "spark.driver.memory=512m", "spark.driver.host=127.0.0.1"),
            *("spark.task.maxFailures=20", "spark.deploy.maxExecutorRetries=-1"),
        )
        conf = [text for setting in settings for text in ("--conf", setting)]
        command = [sys.executable, "-m", "nsqpipe", "submit", "--master", self.url, *conf, "--", *job]
        with (self._folder / "job.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=_environ(path=ROOT), stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    @property
    def job_log(self) -> str:
        return (self._folder / "job.log").read_text()

    def kill_executor(self, worker: int) -> bool:
        """The JVM of an executor; its Python workers end with it."""
        return self._kill(self._of_worker(worker, "CoarseGrainedExecutorBackend"))

    def kill_python(self, worker: int) -> bool:
        """The Python processes of a worker's executor, and the one that makes them."""
        return self._kill(self._of_worker(worker, "pyspark.daemon"))

    def _of_worker(self, worker: int, word: str) -> list[int]:
        session = self._processes[1 + worker].pid
        return [pid for pid in processes_of_session(session) if word in _command(pid)]

    def _start(self, name: str, program: str, *words: str) -> Path:
        path = self._folder / f"{name}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [str(_SPARK / "bin" / "spark-class"), f"{_CLASS}.{program}", *words],
                cwd=self._folder,
                env=_environ(path=None),
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


def _environ(path: Path | None) -> dict[str, str]:
    """Workers do not see this tree: what they need is to come with the job."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    return found | ({"PYTHONPATH": str(path)} if path else {})


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
