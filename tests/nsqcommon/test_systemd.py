"""Messages to a service manager."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nsqcommon.systemd import READY, notify
from tests.support.client import TIMEOUT


@pytest.mark.parametrize("name", ["{folder}/notify", "@{folder}/abstract"])
def test_the_manager_gets_the_notification(tmp_path: Path, name: str) -> None:
    path = name.format(folder=tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if path.startswith("@") else path)
        notify(READY, {"NOTIFY_SOCKET": path})
        manager.settimeout(TIMEOUT)
        assert manager.recv(100) == b"READY=1"


def test_nobody_listens() -> None:
    notify(READY, {})


def test_a_manager_that_is_gone_is_no_reason_to_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "cannot notify the service manager" in caplog.text
