"""The data path: the folder a broker owns, with its lock, its identity and the names of its files.

    node.json       the node's id, and how many message ids are reserved
    topology.json   the names of topics and channels: a second copy, besides the journal
    journal.NNNNNN  the change journal
    policy.json     the last valid policy file, see nsqd/policy_copy.py
    owner.json      the process that uses the folder, for other machines to see: owner.py
    readers.json    the progress of history readers, as they report it; nothing depends on it
    topics/t.<name>/    one topic's log
    topics/x.<random>/  the log of a deleted topic, to be removed
    go-import.json  the progress of an import from a Go nsqd, see nsqd/go_import

Each small file has its own checksum. If one is lost or damaged, we restore it from a second copy: node.json and
topology.json from the journal, log.json from the log's checkpoint in the journal. A damaged file is kept aside. If the
disk refuses to read one, nsqd retries for a while and then doesn't start. We leave files of other programs alone, for
example those of a Go nsqd.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from google_crc32c import value as crc32c

from nsqcommon.startup import StartupError
from nsqd.log.clock_mark import ClockJump, ClockMark, clock_mark, jump_between
from nsqd.log.files import Files, error_text
from nsqd.log.reading.refusals import patiently
from nsqd.log.segment import LOG_SUFFIX

TOPICS: Final = "topics"
NODE_JSON: Final = "node.json"
TOPOLOGY_JSON: Final = "topology.json"
READERS_JSON: Final = "readers.json"
LOG_JSON: Final = "log.json"
JOURNAL_PREFIX: Final = "journal."
FORMAT: Final = 1

_TOPIC_PREFIX: Final = "t."  # a prefix, because "." and ".." are legal topic names
_DROPPED_PREFIX: Final = "x."
_CHECKSUM: Final = "crc"


class FileCondition(StrEnum):
    """The condition of a small file."""

    SOUND = "sound"
    MISSING = "missing"
    DAMAGED = "damaged"


class DataPathError(StartupError):
    """The data path can't be used. The text is one line for the operator."""


class JournalEnd(NamedTuple):
    """How far the journal is synced: up to byte `size` of the file with this number."""

    number: int = 0
    size: int = 0


class NodeFile(NamedTuple):
    """The content of node.json."""

    node: str
    ids_reserved: int
    journal: JournalEnd
    clock: ClockMark | None = None  # None: an older version wrote it


class SmallFile(NamedTuple):
    condition: FileCondition
    content: dict[str, Any]


class Topology:
    """The content of topology.json: topics with their channels, and the topics' log ids.

    You add topics in parts, and each part is encoded as it's added, because encoding tens of thousands of topics in one
    go would block the event loop.
    """

    def __init__(self, names: Mapping[str, object] | None = None, logs: Mapping[str, str] | None = None) -> None:
        self._names: list[bytes] = []
        self._logs: list[bytes] = []
        self.add(names or {}, logs or {})

    def add(self, names: Mapping[str, object], logs: Mapping[str, str]) -> None:
        for members, parts in ((names, self._names), (logs, self._logs)):
            if members:
                parts.append(_compact(members)[1:-1])

    def json(self) -> bytes:
        """Return the file's content: exactly the bytes that `as_json` would give for the whole."""
        names, logs = b",".join(self._names), b",".join(self._logs)
        members = b'"format":%d,"topology":{%b},"logs":{%b}' % (FORMAT, names, logs)
        return b'{%b,"%b":"%08x"}\n' % (members, _CHECKSUM.encode(), crc32c(b"{%b}\n" % members))


class DataPath:
    def __init__(
        self,
        folder: Path,
        files: Files,
        *,
        new_id: Callable[[], str],
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], ClockMark] = clock_mark,
    ) -> None:
        self.folder = folder
        self.topics = folder / TOPICS
        self.node = ""
        self.ids_reserved = 0
        self.journal_end = JournalEnd()
        self.clock_noted: ClockMark | None = None  # the mark in node.json, from an earlier process
        self.is_new = False  # the folder was empty, apart from other programs' files
        self.node_condition = FileCondition.SOUND
        self._files = files
        self._new_id = new_id
        self._clock = clock
        self.lost: str | None = None  # the last result of `lost_place`, which a timer stores here
        self._places: dict[Path, tuple[int, int]] = {}  # device and inode of our folders
        self.pause = pause  # sleeps between two tries of a refused read
        self._lock = -1

    # Opening

    def open(self) -> None:
        """Lock the folder and create any missing files in it. Raises DataPathError."""
        self._lock = take_lock(self._files, self.folder, self.pause)
        try:
            if not self._files.is_writable(self.folder):
                raise DataPathError(f"failed to open data-path: {self.folder} is not writable")
            self.read_again()
        except DataPathError:
            self.close()
            raise

    def read_again(self) -> None:
        """Reload the files that `open` has read, after a takeover from another machine. Raises DataPathError."""
        try:
            patiently(self._open_node, self.pause)
            patiently(self._open_topics, self.pause)
            self._places = {folder: self._files.identity_of(folder) for folder in (self.folder, self.topics)}
        except OSError as error:
            path = error.filename or self.folder
            raise DataPathError(f"failed to open data-path: {error_text('open', path, error)}") from error

    def _open_node(self) -> None:
        found = read_node(self._files, self.folder)
        if isinstance(found, NodeFile):
            self.node, self.ids_reserved, self.journal_end, self.clock_noted = found
            return
        self.is_new = found is FileCondition.MISSING and not self._has_data()
        if self.is_new:
            # Write an empty topology.json before node.json: once node.json exists, a missing topology.json is damage.
            if not self._files.exists(self.folder / TOPOLOGY_JSON):
                self.write_topology(Topology().json())
            self.node = self._new_id()
            self._write_node()
        else:
            self.node_condition = found

    def _open_topics(self) -> None:
        if not self._files.exists(self.topics):
            self._files.make_folder(self.topics)
            self._files.sync_folder(self.folder)

    def _has_data(self) -> bool:
        names = self._files.names_in(self.folder)
        return TOPICS in names or any(map(is_journal, names))

    def name_node(self, node: str, ids_reserved: int) -> Path | None:
        """Set the node's id, or a new one if `node` is empty, and rewrite node.json.

        Returns the path of the damaged file kept aside, if any.
        """
        kept = keep_small_file_aside(self._files, self.folder / NODE_JSON)
        self.node = node or self._new_id()
        self.ids_reserved = ids_reserved
        self._write_node()
        return kept

    def clock_jump(self) -> ClockJump | None:
        """Return how far the wall clock was set since an earlier process left its mark, or None if it wasn't."""
        return jump_between(self.clock_noted, self._clock()) if self.clock_noted is not None else None

    def close(self) -> None:
        if self._lock >= 0:
            self._files.close(self._lock)
            self._lock = -1

    # Whether it was moved away

    def lost_place(self) -> str | None:
        """Return an error text if our path no longer leads to the folder that we opened, else None.

        A disk error doesn't count, since reads and writes will run into it and report it. Blocks on the disk.
        """
        for folder, opened in self._places.items():
            try:
                found = self._files.identity_of(folder)
            except (FileNotFoundError, NotADirectoryError):
                return f"data-path {self.folder}: {folder} was deleted or moved away"
            except OSError:
                continue
            if found != opened:
                return f"data-path {self.folder}: {folder} was replaced by another folder"
        return None

    def refuse_if_moved(self) -> None:
        """Raise OSError while our path leads to another folder, so that we don't write into that one."""
        if self.lost is not None:
            raise OSError(errno.ESTALE, self.lost, str(self.folder))

    # Small files

    def reserve_ids(self, until: int) -> None:
        self.ids_reserved = max(self.ids_reserved, until)
        self._write_node()

    def note_journal_end(self, end: JournalEnd) -> None:
        """Save how far the journal is synced, so that the next start notices if it's shorter. Raises OSError."""
        self.journal_end = end
        self._write_node()  # even if the end hasn't changed: this also saves a new clock mark

    def _write_node(self) -> None:
        self.refuse_if_moved()
        node = NodeFile(self.node, self.ids_reserved, self.journal_end, self._clock())
        write_node(self._files, self.folder, node)

    def read_topology(self) -> SmallFile:
        return read_small_file(self._files, self.folder / TOPOLOGY_JSON)

    def write_topology(self, topology: bytes) -> None:
        """Replace topology.json. Blocks on the disk. Raises OSError."""
        self.refuse_if_moved()
        self._files.replace(self.folder / TOPOLOGY_JSON, topology)

    def read_readers(self) -> SmallFile:
        return read_small_file(self._files, self.folder / READERS_JSON)

    def write_readers(self, readers: Mapping[str, object]) -> None:
        """Replace readers.json. Blocks on the disk. Raises OSError."""
        self.refuse_if_moved()
        self._files.replace(self.folder / READERS_JSON, as_json({"format": FORMAT, "readers": readers}))

    # Topics

    def topic_folder(self, topic: str) -> Path:
        return self.topics / (_TOPIC_PREFIX + topic)

    def topic_names(self) -> list[str]:
        return [it.removeprefix(_TOPIC_PREFIX) for it in self._folder_names() if it.startswith(_TOPIC_PREFIX)]

    def has_segments(self, topic: str) -> bool:
        return any(name.endswith(LOG_SUFFIX) for name in self._files.names_in(self.topic_folder(topic)))

    def dropped_folders(self) -> list[Path]:
        return [self.topics / name for name in self._folder_names() if name.startswith(_DROPPED_PREFIX)]

    def _folder_names(self) -> list[str]:
        try:
            return self._files.names_in(self.topics)
        except FileNotFoundError:
            return []

    def new_dropped_folder(self) -> Path:
        return self.topics / (_DROPPED_PREFIX + self._new_id())

    def read_log_id(self, folder: Path) -> str | None:
        """Return the id of the log in this folder, like `read_log_id` below. Raises OSError."""
        return read_log_id(self._files, folder)


def take_lock(files: Files, folder: Path, pause: Callable[[float], None]) -> int:
    """Lock a data path. To release the lock, close the returned descriptor. Raises DataPathError."""
    try:
        return patiently(lambda: files.lock_folder(folder), pause)
    except BlockingIOError as error:
        raise DataPathError(
            f"failed to lock data-path: cannot flock directory {folder} - resource temporarily unavailable "
            "(possibly in use by another instance of nsqd)"
        ) from error
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: {error_text('open', folder, error)}") from error


def is_log_folder(name: str) -> bool:
    """Return whether a folder or file of this name is the folder of a topic or of a deleted topic."""
    return name.startswith((_TOPIC_PREFIX, _DROPPED_PREFIX))


def is_journal(name: str) -> bool:
    digits = name.removeprefix(JOURNAL_PREFIX)
    return digits != name and digits.isascii() and digits.isdigit()


# Small files


def as_json(value: Mapping[str, object]) -> bytes:
    """Encode an object and append a checksum member. The checksum covers the encoding without that member."""
    return _plain_json({**value, _CHECKSUM: f"{crc32c(_plain_json(value)):08x}"})


def _plain_json(value: Mapping[str, object]) -> bytes:
    return _compact(value) + b"\n"


def _compact(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_small_file(files: Files, path: Path) -> SmallFile:
    """Read an object that `as_json` encoded. Raises DataPathError if the file has another version's format.

    Raises OSError if the disk refuses to read it; then its content may still be fine.
    """
    try:
        data = files.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return SmallFile(FileCondition.MISSING, {})
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    content = _decoded(data)
    if content is None:
        return SmallFile(FileCondition.DAMAGED, {})
    if content.get("format") != FORMAT:
        raise DataPathError(f"failed to open data-path: {path} has format {content.get('format')!r}, not {FORMAT}")
    return SmallFile(FileCondition.SOUND, content)


def _decoded(data: bytes) -> dict[str, Any] | None:
    """Return the object, or None if the data isn't exactly what `as_json` would give for it."""
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            return None
        found.pop(_CHECKSUM, None)
        return found if as_json(found) == data else None
    except (ValueError, RecursionError):
        return None


def keep_small_file_aside(files: Files, path: Path) -> Path | None:
    """Rename a damaged file to `<name>.damaged`, unless there is one already: then leave both alone.

    Returns the path of the `.damaged` file, or None if the file is missing or can't be renamed.
    """
    kept = path.with_name(path.name + ".damaged")
    try:
        if not files.exists(path):
            return None
        if not files.exists(kept):
            files.rename(path, kept)
    except OSError:
        return None
    return kept


def read_node(files: Files, folder: Path) -> NodeFile | FileCondition:
    found = read_small_file(files, folder / NODE_JSON)
    match found.content:
        case {"node": str(node), "ids_reserved": int(ids_reserved), "journal": [int(number), int(size)]}:
            return NodeFile(node, ids_reserved, JournalEnd(number, size), _clock_in(found.content))
    return found.condition if found.condition is FileCondition.MISSING else FileCondition.DAMAGED


def _clock_in(content: Mapping[str, object]) -> ClockMark | None:
    match content.get("clock"):
        case [str(boot), int(since_boot), int(wall)]:
            return ClockMark(boot, since_boot, wall)
    return None


def write_node(files: Files, folder: Path, node: NodeFile) -> None:
    text: dict[str, object] = {
        "format": FORMAT,
        "node": node.node,
        "ids_reserved": node.ids_reserved,
        "journal": list(node.journal),
    }
    if node.clock is not None:
        text["clock"] = list(node.clock)
    files.replace(folder / NODE_JSON, as_json(text))


def read_log_id(files: Files, folder: Path) -> str | None:
    """Return the id of the log in the folder of a topic or a deleted topic, or None if log.json has no valid id."""
    content = read_small_file(files, folder / LOG_JSON).content
    log_id = content.get("log")
    is_its_own = not folder.name.startswith(_TOPIC_PREFIX) or folder.name == f"{_TOPIC_PREFIX}{content.get('topic')}"
    return log_id if isinstance(log_id, str) and is_its_own else None


def write_log_json(files: Files, folder: Path, topic: str, log_id: str, *, durable: bool) -> None:
    """Create the topic's folder if it is missing, and write the log's id to its log.json."""
    if not files.exists(folder):
        files.make_folder(folder)
    text = as_json({"format": FORMAT, "log": log_id, "topic": topic})
    if durable:
        files.replace(folder / LOG_JSON, text)
    else:  # the folder is new, so there is nothing to replace; if a crash tears the file, the log just gets a new id
        files.write_new(folder / LOG_JSON, text)
