"""The last valid content of the policy file, kept in the data path: a broken file must not keep a node from starting.

A node that runs goes on with what the file said before. Without the copy, the next crash would end that: the file may
have been broken for weeks by then, and all nodes that have it would stay down.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsqd.log.data_path import FORMAT, DataPathError, as_json, read_small_file
from nsqd.policy.policy_file import KeptCopy

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.log.files import Files

POLICY_JSON: Final = "policy.json"

log = logging.getLogger(__name__)


def read_copy(files: Files, folder: Path) -> KeptCopy | None:
    """Return the copy in a data path. None if there is none that can be read."""
    try:
        content = read_small_file(files, folder / POLICY_JSON).content
        return KeptCopy(str(content["path"]), str(content["text"]), int(content["read_at"]))
    except (OSError, DataPathError, KeyError, TypeError, ValueError):
        return None


def write_copy(files: Files, folder: Path, copy: KeptCopy) -> bool:
    """Replace the copy in one step. If the disk refuses, log that, keep the former one, and return False."""
    try:
        files.replace(folder / POLICY_JSON, as_json({"format": FORMAT, **copy._asdict()}))
    except OSError as error:
        log.warning("no copy of the policy file is kept for the next start: %s", error)
        return False
    return True
