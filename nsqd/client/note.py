"""What a client's protocol has for the log, which only a shell can write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

# "lost" is why nothing more can be read, "magic" what the client began with, and "exit" that it is not served any more.
NoteKind = Literal["info", "error", "lost", "magic", "exit"]
Note = Callable[[NoteKind, bytes], None]
