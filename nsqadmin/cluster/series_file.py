"""Keeps hours and days of charts over a restart: one file, replaced as a whole every five minutes and at the end."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgpack
import trio

if TYPE_CHECKING:
    from nsqadmin.cluster.series import SeriesStore

log = logging.getLogger(__name__)

_EVERY: Final = 300.0  # seconds
_AT_THE_END: Final = 5.0  # seconds that writing the file at the end may take


def load(path: str, store: SeriesStore) -> None:
    """Load the file into the store. A file that cannot be read only means that charts start empty."""
    try:
        with open(path, "rb") as file:
            store.load(msgpack.unpackb(file.read()))
    except FileNotFoundError:
        return
    except (OSError, ValueError, msgpack.exceptions.UnpackException) as error:
        log.warning("charts start empty: %s cannot be read - %s", path, error)


async def keep(path: str, store: SeriesStore) -> None:
    """Save the store every five minutes until cancelled, and then once more."""
    try:
        while True:
            await trio.sleep(_EVERY)
            await _save(path, store)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _AT_THE_END):
            await _save(path, store)


async def _save(path: str, store: SeriesStore) -> None:
    packed = msgpack.packb(store.dump())
    try:
        await trio.to_thread.run_sync(_replace, path, packed)
    except OSError as error:
        log.error("charts cannot be saved in %s - %s", path, error)


def _replace(path: str, content: bytes) -> None:
    beside = f"{path}.tmp"
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
