"""The copy of a data path that `--remote` names, as a start attaches it to the store of topics."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nsqcommon.options import seconds
from nsqcommon.recipients import host_and_port
from nsqcommon.startup import StartupError
from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import Files
from nsqd.remote.claiming import Surroundings
from nsqd.remote.confirmations import Confirmations
from nsqd.remote.location import parse_location, parse_node_name, parse_remote_option
from nsqd.remote.node import RemoteNode, RemoteSettings
from nsqd.remote.recorder import Recorded, RecordedFiles
from nsqd.remote.vigil import Vigil

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event

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
        self._give_to(store)

    def vigil(self, after: float, address: str) -> Vigil:
        """Return what `wait_for_name` waits with. `address` is where others can ask this process."""
        settings = self._node.settings
        return Vigil(settings.name, str(settings.location), after, address=address)

    def address_of(self, options: Options) -> str:
        """Return where others can ask whether this process is alive. These options have its ports."""
        return _http_address(options)

    def wait_for_name(self, store: DiskStore, vigil: Vigil, stopped: Event, *, http_address: str) -> None:
        """Do the same as `attach`, as a standby that serves HTTP at this address: wait until the owner of the name is gone.

        This blocks for days, so call it in a thread. Raises StartupError, also soon after `stopped` is set.
        """
        surroundings = Surroundings(pause=stopped.wait, is_stopped=stopped.is_set)
        self._node.settings = replace(self._node.settings, http_address=http_address)
        self._node.claim(store.data_path, self._disk, self.files, vigil=vigil, surroundings=surroundings)
        self._give_to(store)

    @property
    def requests(self) -> Mapping[tuple[str, str], int]:
        """How many requests the store has got, by verb and outcome."""
        return self._node.requests.snapshot()[0]

    def _give_to(self, store: DiskStore) -> None:
        fault = StorageFault(store.faults, FaultKind.REMOTE)
        settings = self._node.settings
        store.remote = Confirmations(self._node, fault, timeout=settings.timeout, is_strict=settings.is_strict)

    def leave(self) -> None:
        """Leave the data path alone from now on. Call this before it is unlocked, if the name was lost."""
        self._node.leave()


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
        rate=options.remote_rate,
        is_strict=options.remote_strict,
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
