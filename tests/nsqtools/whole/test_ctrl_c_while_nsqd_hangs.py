"""An nsqd accepts connections and never answers: one Ctrl-C ends a tool that has just started."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.support.tools import LIMIT, Tool


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("nsq_tail", ("--channel=c",)),
        ("nsq_to_file", ("--output-dir={folder}",)),
        ("nsq_to_http", ("--post=http://127.0.0.1:1/",)),
        ("nsq_to_nsq", ("--destination-nsqd-tcp-address=127.0.0.1:1",)),
    ],
)
def test_a_tool_that_waits_for_its_nsqd_can_be_stopped(
    tool: str, arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    given = [it.format(folder=folder) for it in arguments]
    with socket.create_server(("127.0.0.1", 0)) as hung:
        hung.settimeout(LIMIT)
        with Tool(tool, "--topic=t", f"--nsqd-tcp-address=127.0.0.1:{hung.getsockname()[1]}", *given) as it:
            connection, _ = hung.accept()
            with connection:
                connection.settimeout(LIMIT)
                assert connection.recv(4) == b"  V2"
                assert it.stop(signal.SIGINT) == 0, it.log
