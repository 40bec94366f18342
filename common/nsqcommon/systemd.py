"""Reports the daemon's state to systemd, or any service manager that sets NOTIFY_SOCKET, as sd_notify(3) does."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send the state to the service manager. Does nothing if there is none."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # an abstract socket has no file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            sock.send(state.encode())
    except OSError as error:
        log.warning("cannot notify the service manager at %s: %s", path, error)
