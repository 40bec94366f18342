"""Compile the cores or not? That alone is asked here; everything else is in pyproject.toml.

`NSQ_COMPILE=1 pip install .` compiles these modules with mypyc, from the same source. Any other build is pure Python, and so
is every editable install. Why, and what it gains: docs/decisions/0003-compiled-core.md.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from glob import glob
from tempfile import TemporaryDirectory
from typing import Any, Final

from setuptools import setup
from setuptools.command.build_ext import build_ext

MYPY: Final = "mypy==2.4.1"  # brings mypyc; the one that checks the types, as in pyproject.toml
COMPILED: Final = (
    # Each command, each frame.
    "common/nsqcommon/wire/commands.py",
    "common/nsqcommon/wire/equal_pieces.py",
    "common/nsqcommon/wire/extensions.py",
    "common/nsqcommon/wire/faults.py",
    "common/nsqcommon/wire/frames.py",
    "common/nsqcommon/wire/headers.py",
    "common/nsqcommon/wire/hot_record.py",
    "common/nsqcommon/wire/log_record.py",
    "common/nsqcommon/wire/message.py",
    "common/nsqcommon/wire/mpub.py",
    # Each turn, each message.
    *sorted(glob("nsqd/broker/[!_]*.py")),
    *(f"nsqd/client/{part}.py" for part in ("authorization", "keepalive", "outbox", "profile", "protocol")),
    *(f"nsqd/client/{part}.py" for part in ("publisher", "states", "work_budget", "subscription")),
    # Each batch, on its way to the disk and back.
    "nsqd/log/compaction/schedule.py",
    "nsqd/log/disk_reserve.py",
    "nsqd/log/segment_removal.py",
    "nsqd/log/faults.py",
    "nsqd/log/log_fault.py",
    "nsqd/log/reading/log_reader.py",
    "nsqd/log/record.py",
    "nsqd/log/segment_list.py",
    "nsqd/log/topic_log.py",
    "nsqd/log/journal/keeper.py",
    "nsqd/log/reading/reads.py",
    "nsqd/log/reading/tail_cache.py",
    "nsqd/log/sync/syncer.py",
    "nsqd/log/writing/segment_writer.py",
    "nsqd/log/writing/unsynced.py",
    "nsqd/log/writing/write_buffer.py",
    # The shells that every turn passes through.
    "common/nsqcommon/poller.py",
    "nsqd/log/store.py",
    "nsqd/turn.py",
)
# The code of all of them is one library at the top level of site-packages: nsq_core__mypyc. mypyc would name it after a
# hash, and everything that we install there has a name that begins with "nsq".
LIBRARY: Final = "nsq_core"
# What `scripts/check` asks of the types is not asked again, and trio need not be there.
QUIET: Final = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir=/dev/null")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class ParallelBuild(build_ext):  # type: ignore[misc]  # it has no types
    """Runs the C compiler on several files at a time. setuptools itself only builds several extensions at a time, and
    nearly all of our code is in one.
    """

    def build_extensions(self) -> None:
        compiler = self.compiler
        compile_all, compile_one = compiler.compile, compiler._compile
        with ThreadPoolExecutor(cores()) as threads:

            def compile(*arguments: Any, **settings: Any) -> Any:
                begun: list[Future[None]] = []
                compiler._compile = lambda *file: begun.append(threads.submit(compile_one, *file))
                objects = compile_all(*arguments, **settings)
                for file in begun:
                    file.result()
                return objects

            compiler.compile = compile
            super().build_extensions()


compiles = os.environ.get("NSQ_COMPILE") == "1"
with TemporaryDirectory(prefix="nsq-build-") as folder:  # nothing stays beside the sources, nothing stale is packed
    extensions = []
    if compiles and "bdist_wheel" in sys.argv:  # for anything else that is asked here they are not needed
        from mypyc.build import mypycify

        extensions = mypycify(
            [*QUIET, *COMPILED],
            opt_level="3",
            debug_level="0",
            target_dir=folder,
            group_name=LIBRARY,
            multi_file=True,  # one C file for each module: the compiler needs half the time and an eighth of the memory
        )
    setup(
        setup_requires=[MYPY] if compiles else [],
        ext_modules=extensions,
        cmdclass={"build_ext": ParallelBuild},
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
