"""The folder that a broker owns: its lock, who it is, and the names of things in it.

    node.json       whose data this is, and which ids may have been given out
    topology.json   topics and channels by name: the second place where a channel is named
    journal.NNNNNN  the change journal
    topics/t.<name>/    one topic's log
    topics/x.<random>/  a deleted one, on its way out

Files of other programs, a Go nsqd's among them, are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from common.startup import StartupError
from nsqd.log.files import Files, error_text

TOPICS: Final = "topics"
NODE_JSON: Final = "node.json"
TOPOLOGY_JSON: Final = "topology.json"
LOG_JSON: Final = "log.json"
FORMAT: Final = 1

_TOPIC_PREFIX: Final = "t."  # "." and ".." are legal names of topics
_DROPPED_PREFIX: Final = "x."


class DataPathError(StartupError):
    """The data path cannot be used; the text is one line for the operator."""


class DataPath:
    def __init__(self, folder: Path, files: Files, *, new_id: Callable[[], str]) -> None:
        self.folder = folder
        self.topics = folder / TOPICS
        self.node = ""
        self.ids_reserved = 0
        self._files = files
        self._new_id = new_id
        self._lock = -1

    # Opening

    def open(self) -> None:
        """Locks the folder and makes what is missing in it. Raises DataPathError."""
        self._take_lock()
        try:
            if not self._files.is_writable(self.folder):
                raise DataPathError(f"failed to open data-path: {self.folder} is not writable")
            try:
                self._open_node()
                if not self._files.exists(self.topics):
                    self._files.make_folder(self.topics)
                    self._files.sync_folder(self.folder)
            except OSError as error:
                path = error.filename or self.folder
                raise DataPathError(f"failed to open data-path: {error_text('open', path, error)}") from error
        except DataPathError:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            self._lock = self._files.lock_folder(self.folder)
        except BlockingIOError as error:
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {self.folder} - resource temporarily unavailable "
                "(possibly in use by another instance of nsqd)"
            ) from error
        except OSError as error:
            raise DataPathError(f"failed to lock data-path: {error_text('open', self.folder, error)}") from error

    def _open_node(self) -> None:
        path = self.folder / NODE_JSON
        if not self._files.exists(path):
            self.node = self._new_id()
            self._write_node()
            return
        found = self.read_json(path)
        if found is None or not isinstance(found.get("node"), str) or not isinstance(found.get("ids_reserved"), int):
            # Guessing would give the node a new identity and could give ids out twice.
            raise DataPathError(
                f"failed to open data-path: {path} is damaged; restore it, or move it away to begin anew"
            )
        if found.get("format") != FORMAT:
            raise DataPathError(f"failed to open data-path: {path} has format {found.get('format')!r}, not {FORMAT}")
        self.node = found["node"]
        self.ids_reserved = found["ids_reserved"]

    def close(self) -> None:
        if self._lock >= 0:
            self._files.close(self._lock)
            self._lock = -1

    # Small files

    def reserve_ids(self, until: int) -> None:
        self.ids_reserved = max(self.ids_reserved, until)
        self._write_node()

    def _write_node(self) -> None:
        node = {"format": FORMAT, "node": self.node, "ids_reserved": self.ids_reserved}
        self._files.replace(self.folder / NODE_JSON, as_json(node))

    def read_json(self, path: Path) -> dict[str, Any] | None:
        """The object in a file; None: there is none, or it cannot be understood."""
        try:
            found = json.loads(self._files.read(path))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def read_topology(self) -> object | None:
        found = self.read_json(self.folder / TOPOLOGY_JSON)
        return found.get("topology") if found is not None else None

    def write_topology(self, topology: bytes) -> None:
        """Blocks on the disk."""
        self._files.replace(self.folder / TOPOLOGY_JSON, topology)

    # Topics

    def topic_folder(self, topic: str) -> Path:
        return self.topics / (_TOPIC_PREFIX + topic)

    def topic_names(self) -> list[str]:
        names = self._files.names_in(self.topics)
        return [name.removeprefix(_TOPIC_PREFIX) for name in names if name.startswith(_TOPIC_PREFIX)]

    def dropped_folders(self) -> list[Path]:
        return [self.topics / name for name in self._files.names_in(self.topics) if name.startswith(_DROPPED_PREFIX)]

    def new_dropped_folder(self) -> Path:
        return self.topics / (_DROPPED_PREFIX + self._new_id())

    def read_log_id(self, folder: Path) -> str | None:
        found = self.read_json(folder / LOG_JSON)
        log_id = found.get("log") if found is not None else None
        return log_id if isinstance(log_id, str) else None


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def topology_json(topology: object) -> bytes:
    return as_json({"format": FORMAT, "topology": topology})


def write_log_json(files: Files, folder: Path, topic: str, log_id: str, *, durable: bool) -> None:
    """Makes the topic's folder, if need be, and says in it which log this is."""
    if not files.exists(folder):
        files.make_folder(folder)
    text = as_json({"format": FORMAT, "log": log_id, "topic": topic})
    if durable:
        files.replace(folder / LOG_JSON, text)
    else:  # the folder is new: there is nothing to replace, and a torn file only means another id
        files.write_new(folder / LOG_JSON, text)
