"""A command `nsqpipe` that runs in the test's process, on the Spark session that is there: no JVM starts for it.

For programs that run `nsqpipe` as a command, such as schedulers: `write_command` writes the file that they find, and
while `run` runs such a program, each call of the command is `nsqpipe.cli.app` here, with the same words, streams and
exit status.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from nsqpipe.cli import app

_COMMAND: Final = """#!{python} -IS
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as connection, connection.makefile() as answers:
    connection.sendall(json.dumps(sys.argv[1:]).encode())
    connection.shutdown(socket.SHUT_WR)
    status, out, err = json.load(answers)
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""


class Served:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))

    def close(self) -> None:
        self._listener.close()

    def write_command(self, path: Path) -> None:
        path.write_text(_COMMAND.format(python=sys.executable, port=self._listener.getsockname()[1]))
        path.chmod(0o755)

    def run(self, command: Sequence[str], *, env: Mapping[str, str], log: Path, timeout: float) -> int:
        """Run a program to its end, with its output in `log`, and the commands that it starts meanwhile in here."""
        deadline = time.monotonic() + timeout
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, cwd=env.get("HOME"), env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ) as process,
        ):
            ended, asked = os.pidfd_open(process.pid), self._listener.fileno()
            try:
                while True:
                    ready, _, _ = select.select([asked, ended], [], [], max(0, deadline - time.monotonic()))
                    assert ready, f"{command} takes too long"
                    if asked in ready:
                        self._answer()
                    else:
                        return process.wait()
            finally:
                os.close(ended)
                process.kill()  # which does nothing if it has ended

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with closing(connection), connection.makefile("rw") as stream:
            result = CliRunner().invoke(app, json.load(stream))
            stream.write(json.dumps([result.exit_code, result.stdout, result.stderr]))
