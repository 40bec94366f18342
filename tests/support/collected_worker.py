"""The module that xdist has run in each worker, see collected_once.py. The worker gets its text only, and `channel`."""

import sys

if __name__ == "__channelexec__":
    collected_once = sys.modules.get("tests.support.collected_once")
    if collected_once is not None and collected_once.is_worker:
        collected_once.run(channel)  # type: ignore[name-defined]  # noqa: F821
    else:  # an interpreter in which pytest wants to import xdist itself
        from importlib.machinery import PathFinder
        from pathlib import Path

        (folder,) = PathFinder.find_spec("xdist").submodule_search_locations  # type: ignore[union-attr, misc]
        remote = Path(folder, "remote.py")
        exec(compile(remote.read_text(encoding="utf-8"), str(remote), "exec"), globals())
