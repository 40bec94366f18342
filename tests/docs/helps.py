"""Asks commands of one module for their --help: `python -m tests.docs.helps MODULE WORDS...`, with the words of each.

Each is `python -m MODULE WORDS --help` in a fork of this process, which has imported what the module needs: that takes
a second for some, and the help itself next to nothing, if what they share is neither copied nor torn down.
"""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from tests.support import zygote


def main(module: str, commands: Sequence[str]) -> int:
    spec = find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    program = f"{module}.__main__" if is_package else module
    importlib.import_module(program)
    del sys.modules[program]  # each child begins it anew
    gc.collect()
    gc.freeze()
    for words in commands:
        pid = os.fork()
        if not pid:
            sys.argv = [module, *shlex.split(words), "--help"]
            zygote.run(module)
        _, status = os.waitpid(pid, 0)
        if status:
            told = f"python -m {module} {words} --help: exit status {os.waitstatus_to_exitcode(status)}"
            sys.stderr.write(f"{told}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
