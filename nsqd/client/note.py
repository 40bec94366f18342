"""The kinds of log lines about a client. The protocol has no logger; tcp.py writes the lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

# "lost": the reason why we stop reading; "magic": the client's first four bytes; "exit": the client is closed.
NoteKind = Literal["info", "error", "lost", "magic", "exit"]
Note = Callable[[NoteKind, bytes], None]
