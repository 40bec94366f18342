"""Imports our sources instead of their compiled form. `__init__` imports this module only if NSQ_PURE=1 is set.

A compiled wheel has both side by side, `topic.py` and `topic.cpython-311-x86_64-linux-gnu.so`, and Python prefers the
`.so`. With NSQ_PURE=1, `nsqcommon/__init__.py` puts this finder ahead of Python's own. Use it to compare the two cores,
to run py-spy or a debugger, or to rule out the compiler when something looks wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

_COMPILED: Final = ("nsqcommon.", "nsqd.")  # the packages with modules that setup.py compiles


class SourceFinder:
    """Python's own file finder without extension modules, for our submodules only."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_COMPILED):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:  # no loader: a namespace package, such as a data folder
                return spec
        return None


def install() -> None:
    sys.meta_path.insert(0, SourceFinder)
