"""Which store a URL opens. A library for clouds is loaded only when one is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcommon.startup import StartupError
from nsqcommon.version import how_to_install
from nsqd.remote.location import StoreLocation, StoreScheme
from nsqd.remote.object_store import OnUnknown, ignore
from nsqd.remote.stores.folder import FolderStore

if TYPE_CHECKING:
    from nsqd.remote.object_store import ObjectStore


def open_store(
    location: StoreLocation, options: Mapping[str, str], *, node: str = "", on_unknown: OnUnknown = ignore
) -> ObjectStore:
    """Open the store that `--remote` and `--remote-option` name, or the part of it that is a node's.

    Nothing is read or written yet, and each call makes its own connections. Raises StartupError.
    """
    if location.scheme is StoreScheme.FILE:
        if options:
            raise StartupError(f"--remote-option={min(options)}: a folder has no options")
        return FolderStore(Path(location.prefix), node=node, on_unknown=on_unknown)
    try:
        from nsqd.remote.stores.obstore import open_cloud_store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        text = f"--remote={location} needs the library obstore: {how_to_install('remote')}"
        raise StartupError(text) from error
    return open_cloud_store(location, options, node=node, on_unknown=on_unknown)
