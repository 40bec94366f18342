"""The copy of a data path that `--remote` names, as a start attaches it to the store of topics."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nsqcommon.options import seconds
from nsqcommon.recipients import host_and_port
from nsqcommon.startup import StartupError
from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import Files
from nsqd.remote.confirmations import Confirmations
from nsqd.remote.location import parse_location, parse_node_name, parse_remote_option
from nsqd.remote.node import RemoteNode, RemoteSettings
from nsqd.remote.recorder import Recorded, RecordedFiles

if TYPE_CHECKING:
    from nsqd.log.store import DiskStore
    from nsqd.options import Options


T = TypeVar("T")


class RemoteCopy:
    """Open the store with these `files`, and call `attach` when its data path is locked."""

    def __init__(self, options: Options) -> None:
        self._disk = Files()
        self.files = RecordedFiles(self._disk, Path(options.data_path or "."), _ignore)
        self._node = RemoteNode(settings_of(options))

    def attach(self, store: DiskStore) -> None:
        """Own the name, make the data path what its owner begins with, and give the store its copy. Raises StartupError."""
        self._node.claim(store.data_path, self._disk, self.files)
        fault = StorageFault(store.faults, FaultKind.REMOTE)
        store.remote = Confirmations(self._node, fault, timeout=self._node.settings.timeout)


def settings_of(options: Options) -> RemoteSettings:
    """Return what the options say. Raises StartupError if they name no store or no node."""
    return RemoteSettings(
        location=_parsed("remote", parse_location, options.remote),
        options=dict(_parsed("remote-option", parse_remote_option, it) for it in options.remote_option),
        name=_parsed("remote-name", parse_node_name, options.remote_name),
        interval=seconds(options.remote_interval),
        delay=seconds(options.remote_delay),
        timeout=seconds(options.remote_timeout),
        buffer=options.remote_buffer,
        http_address=_http_address(options),
        takes_over=options.take_over,
    )


def _parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise StartupError(f"--{flag} {error}") from error


def _http_address(options: Options) -> str:
    """Return where others can ask whether this process is alive, or "" if we can't know that yet."""
    port = options.broadcast_http_port or host_and_port(options.http_address)[1]
    return f"{options.broadcast_address or platform.node()}:{port}" if port else ""


def _ignore(change: Recorded) -> None:
    """Drop a change that comes before the claim. The chain begins with what the data path has after the recovery."""
