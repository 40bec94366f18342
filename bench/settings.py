"""The options that all benchmarks share. Each benchmark adds its own in a dataclass that inherits these."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import builds
from bench.builds import Build
from scripts.command_line import option

RESULTS: Final = Path(__file__).parent / "results"


@dataclass(kw_only=True)
class Settings:
    results: Path = option(RESULTS, "folder of the result files (default: bench/results)")
    folder: Path | None = option(None, "where to make the temporary folder (default: the system's)")
    pin: bool = option(False, "give the load generator one core, and everything else the others")
    wanted_build: str = option(
        builds.AUTO,
        "nsqd's core: pure Python, or compiled (default: compiled if scripts/compile has been run on this code)",
        flag="--build",
        choices=builds.CHOICES,
    )
    build: Build = field(default=Build.PURE, init=False)  # the one that is measured, once it is known
    at_most: float | None = option(None, "give up after this long", word="MINUTES")
    strict: bool = option(False, "exit with status 1 if a demand is missed")
    flag: tuple[str, ...] = option((), "passed on to each nsqd that is started", word="--NAME=VALUE")
