"""The messages that went aside when a node was adopted, because the store had never got them.

Only topics that didn't wait for the store can have such messages, and machines that were cut off from it. They are no
part of the node any more, because another owner has given their sequences to other messages. So you can look at them,
and publish them again. A message that was published with a key keeps it, because its publisher may have got an error, and
has published it to the next owner. The others get keys, so that you can repeat it. All messages of an MPUB with one key
count as others: a key names a whole publish.

A log that went aside begins with what the store has got. Messages that the node's log has, too, are left out. If the
node has removed the beginning of its log, we can't tell for sequences before it whether the store had got them: such a
message is *uncertain*, and may have been delivered long ago.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from nsqcommon.blocking_http import BlockingHttp, NotHttp
from nsqcommon.wire.groups import without_bad_group
from nsqcommon.wire.headers import decode_headers, header_offsets
from nsqcommon.wire.log_record import decode_keyed
from nsqd.log.data_path import TOPICS, DataPath
from nsqd.log.record import decode_batch
from nsqd.log.segment import LOG_SUFFIX, SegmentWalk, base_of_name
from nsqd.remote.local_files import ASIDE

if TYPE_CHECKING:
    from nsqcommon.wire.log_record import Header
    from nsqd.log.files import Files

_TOPIC: Final = "t."
_TIMEOUT: Final = 30.0  # seconds for a request
_MS: Final = 1_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class AsideMessage:
    topic: str
    sequence: int
    id: int
    timestamp: int  # wall time in nanoseconds
    delay_ms: int
    headers: dict[str, bytes]
    body: bytes
    is_certain: bool
    own_key: str = ""  # with which it was published

    @property
    def key(self) -> str:
        return self.own_key or f"aside-{self.timestamp:x}-{self.id:016x}"

    def as_object(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "sequence": self.sequence,
            "id": f"{self.id:016x}",
            "timestamp": self.timestamp,
            **({"delay_ms": self.delay_ms} if self.delay_ms else {}),
            "certain": self.is_certain,
            **({"key": self.own_key} if self.own_key else {}),
            **({"headers": {name: _text(value) for name, value in self.headers.items()}} if self.headers else {}),
            "body": _text(self.body),
        }


def messages_aside(data_path: Path, files: Files) -> Iterator[AsideMessage]:
    """Yield the messages of all `aside-TIME` folders that the node doesn't have. Raises OSError and UnknownFlags."""
    node = DataPath(data_path, files, new_id=str)
    for name in files.names_in(data_path):
        topics = data_path / name / TOPICS
        if name.startswith(ASIDE) and files.exists(topics):
            for folder in files.names_in(topics):
                if folder.startswith(_TOPIC):
                    topic = folder.removeprefix(_TOPIC)
                    yield from _of_log(topic, topics / folder, _KnownLog(node.topic_folder(topic), files), files)


def _of_log(topic: str, folder: Path, known: _KnownLog, files: Files) -> Iterator[AsideMessage]:
    for base, path in _segments_in(folder, files):
        for header, data, position in _records(path, base, files):
            batch = decode_batch(header, data, position)
            if batch is None or header.base_id in known:
                continue
            is_certain = header.base_sequence >= known.first
            places = header_offsets(batch.headers, header.count) if batch.headers else None
            keys = {start: key.decode() for key, start, count in decode_keyed(header, data, position) if count == 1}
            for number in range(header.count):
                headers = decode_headers(batch.headers, places[number]) if places is not None else {}
                sequence = header.base_sequence + number
                place = (topic, sequence, header.base_id + number, header.timestamp, header.delay_ms)
                yield AsideMessage(*place, headers, batch.body(sequence), is_certain, keys.get(sequence, ""))


class _KnownLog:
    """The ids of the messages that a node's log has now."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.first = 0  # its first sequence
        self._ranges: list[tuple[int, int]] = []  # first id, and the one after the last
        is_first = True
        for base, path in _segments_in(folder, files):
            try:
                for header, _, _ in _records(path, base, files):
                    self._ranges.append((header.base_id, header.base_id + header.count))
            except FileNotFoundError:  # the node is running, and has removed it just now
                is_first = True
                continue
            if is_first:
                self.first, is_first = base, False
        self._ranges.sort()

    def __contains__(self, message_id: int) -> bool:
        place = bisect_right(self._ranges, (message_id, 1 << 64)) - 1
        return place >= 0 and message_id < self._ranges[place][1]


def _segments_in(folder: Path, files: Files) -> list[tuple[int, Path]]:
    try:
        names = files.names_in(folder)
    except FileNotFoundError:
        return []
    found = ((base_of_name(name), folder / name) for name in names if name.endswith(LOG_SUFFIX))
    return sorted((base, path) for base, path in found if base is not None)


def _records(path: Path, base: int, files: Files) -> Iterator[tuple[Header, bytes, int]]:
    """Yield each sound record: its header, and where it is in which bytes."""
    descriptor = files.open_to_read(path)
    try:
        read = partial(_read_at, files, descriptor)
        walk = SegmentWalk(read, offset=0, sequence=base, end=files.size(descriptor), verify=True)
        for block in walk.blocks():
            for position, header in block.headers:
                yield header, block.data, position
    finally:
        files.close(descriptor)


def _read_at(files: Files, descriptor: int, offset: int, size: int) -> bytes:
    return files.read_fully(descriptor, size, offset)


def _text(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


class AsidePublisher:
    """Publishes messages to an nsqd over HTTP, one by one."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._http = BlockingHttp(address, timeout=_TIMEOUT)

    def publish(self, message: AsideMessage, now_ns: int) -> None:
        """Publish a message with the rest of its delay. Raises OSError if that fails."""
        query = {"topic": message.topic, "key": message.key}
        due_in = message.timestamp // _MS + message.delay_ms - now_ns // _MS
        if message.delay_ms and due_in > 0:
            query["defer"] = str(due_in)
        headers = [(f"nsq-header-{name}", value) for name, value in without_bad_group(message.headers).items()]
        try:
            status, text = self._http.request("POST", f"/pub?{urlencode(query)}", headers=headers, body=message.body)
        except NotHttp as error:
            raise OSError(None, str(error), self._address) from error
        if status != HTTPStatus.OK:
            raise OSError(None, f"status {status}: {text[:200].decode('utf-8', 'replace')}", self._address)
