"""Keeps a copy of the last valid policy file in the data path, so that a node can start even if the file is broken.

A running node keeps its policy if the file becomes invalid. Without the copy, you might not notice until a crash weeks
later, when every node that shares the file fails to start.

This stands alone so that `nsqd.policy` doesn't depend on the data path, nor the log on policy files.
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
    """Return the copy in a data path, or None if it is missing or damaged."""
    try:
        content = read_small_file(files, folder / POLICY_JSON).content
        return KeptCopy(str(content["path"]), str(content["text"]), int(content["read_at"]))
    except (OSError, DataPathError, KeyError, TypeError, ValueError):
        return None


def write_copy(files: Files, folder: Path, copy: KeptCopy) -> bool:
    """Replace the copy atomically. If the write fails, log the error, keep the old copy and return False."""
    try:
        files.replace(folder / POLICY_JSON, as_json({"format": FORMAT, **copy._asdict()}))
    except OSError as error:
        log.warning("failed to save a copy of the policy file for the next start: %s", error)
        return False
    return True
