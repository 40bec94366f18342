"""What differs from run to run, and so stands in a script by its name: times, ports, this machine's name."""

from __future__ import annotations

import re
import socket
from typing import Final

_MASKS: Final = [  # in this order; `<n>` is a whole number
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r'("(?:start_time|connect_ts|last_update|tombstoned_at)":)-?\d+', r"\1<time>"),
        (r'("hostname":)"' + re.escape(socket.gethostname()) + '"', r'\1"<hostname>"'),
        (r"(?m)^start_time [\dT:+Z-]+$", "start_time <time>"),
        (r"(?m)^uptime [\dhms.µn]+$", "uptime <time>"),
        (r"(?m)connected: \d+s$", "connected: <time>"),
        (r"\(built w/[^)]*\)", "(built w/<runtime>)"),
        (r'("(?:heap|gc|next)_\w+":)\d+', r"\1<n>"),
        (r"(?m)^(   (?:heap|gc|next)_\w+ *\t)\d+$", r"\1<n>"),
        (r'("https_port": )[1-9]\d*', r"\1<https port>"),
        # A client's port has five digits, and so always the same width.
        (r"(127\.0\.0\.1|\[V2 \w+):\d{5}\b", r"\1:<port>"),
    )
]


def masked(text: str, *, tcp_port: int, http_port: int) -> str:
    """Return the text with these ports of the server, and all the rest, masked."""
    if tcp_port:
        text = re.sub(rf'("tcp_port":|127\.0\.0\.1:){tcp_port}\b', r"\1<tcp port>", text)
        text = re.sub(rf'("http_port":|127\.0\.0\.1:|127_0_0_1_){http_port}\b', r"\1<http port>", text)
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text
