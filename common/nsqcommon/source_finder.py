"""Finds the sources of our modules before their compiled form.

A compiled wheel has both beside each other, `topic.py` and `topic.cpython-311-x86_64-linux-gnu.so`, and Python takes the
`.so`. With NSQ_PURE=1, `nsqcommon/__init__.py` puts this finder in front of Python's own. It is there for comparing the two
cores, for py-spy and debuggers, and for ruling out the compiler when something looks wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

_COMPILED: Final = ("nsqcommon.", "nsqd.")  # the packages that setup.py compiles modules of


class SourceFinder:
    """Python's finder of files, if there were no extension modules; only for submodules of ours."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_COMPILED):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:  # without a loader it is a folder of data
                return spec
        return None


def install() -> None:
    sys.meta_path.insert(0, SourceFinder)
