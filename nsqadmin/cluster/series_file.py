"""Keeps state over a restart: one file, replaced as a whole every five minutes and at the end.

Several parts of nsqadmin have state to keep: the charts, the nodes with their last answers. Each part has a name in the
file; if we can't read a part, it only loses its own content.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgpack
import trio

from nsqcommon.disk_sync import sync_all

log = logging.getLogger(__name__)

_EVERY: Final = 300.0  # seconds
_AT_THE_END: Final = 5.0  # seconds for writing the file at the end
_CHARTS: Final = "charts"  # name of the charts; a file of an earlier release has only these, and no names


class Part(Protocol):
    """State to keep. `SeriesStore` is one."""

    def dump(self) -> Any:
        """Return a value for msgpack. A function in it is called in another thread, and its result is kept."""
        ...

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else."""
        ...


def load(path: str, **parts: Part) -> None:
    """Load the file into these parts. If a part can't be read, it starts empty."""
    try:
        with open(path, "rb") as file:
            document = msgpack.unpackb(file.read(), strict_map_key=False)
        if not isinstance(document, dict):
            raise ValueError("not a file of nsqadmin")
    except FileNotFoundError:
        return
    except (OSError, ValueError, msgpack.exceptions.UnpackException) as error:
        log.warning("%s start empty: %s cannot be read - %s", " and ".join(parts), path, error)
        return
    if "format" in document:
        document = {_CHARTS: document}
    for name, part in parts.items():
        try:
            if name in document:
                part.load(document[name])
        except ValueError as error:
            log.warning("%s start empty: %s cannot be read - %s", name, path, error)


async def keep(path: str, parts: Mapping[str, Part]) -> None:
    """Save the parts every five minutes until cancelled, and then once more."""
    try:
        while True:
            await trio.sleep(_EVERY)
            await save(path, parts)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _AT_THE_END):
            await save(path, parts)


async def save(path: str, parts: Mapping[str, Part]) -> None:
    dumped = {name: part.dump() for name, part in parts.items()}
    try:
        await trio.to_thread.run_sync(_replace, path, dumped)
    except OSError as error:
        log.error("%s cannot be saved in %s - %s", " and ".join(parts), path, error)


def _replace(path: str, dumped: Mapping[str, Any]) -> None:
    content = msgpack.packb(dumped, default=lambda value: value())
    beside = f"{path}.tmp"
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        sync_all(file.fileno())
    os.replace(beside, path)
