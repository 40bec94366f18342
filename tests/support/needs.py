"""What a test needs of the machine. Where it is missing the test is skipped, with a short reason such as "no curl".

Where `CI` is set everything has to be there, and the test fails: what nobody runs finds nothing. Mark the test, or its
whole file, or call `need` in a fixture:

    pytestmark = pytest.mark.needs("C compiler")
    @pytest.mark.needs("curl", "openssl")

A name is a command, unless NAMED or MODULES below has it. What a whole folder needs is in FOLDERS, because its files
cannot even be imported without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
# scripts/bring-object-stores brings these.
CEPH: Final = _ROOT / "build/object-stores/ceph"
AZURITE: Final = _ROOT / "build/object-stores/azurite/node_modules/azurite/dist/src/blob/main.js"


def faketime(*, threads: bool = False) -> Path | None:
    """Return Debian's library that sets the clock of a process, of one thread or of several."""
    return next(iter(sorted(Path("/usr/lib").glob(f"*/faketime/libfaketime{'MT' * threads}.so.1"))), None)


def postgres() -> Path | None:
    """Return the folder of the newest installed server's programs, which Debian puts where no PATH leads to."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda it: float(it.parts[-3]))
    if found:
        return found[-1].parent
    here = shutil.which("initdb")
    return Path(here).resolve().parent if here else None


def _npm(path: str) -> Callable[[], bool]:
    return (Path(__file__).parents[1] / path).exists


def _commands(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


def _azurite() -> bool:
    return AZURITE.exists() and shutil.which("node") is not None


NAMED: Final[Mapping[str, Callable[[], object]]] = {
    "axe-core": _npm("browser/node_modules/axe-core"),
    "Azurite": _azurite,
    "browser": _commands("chromium", "chromedriver"),
    "C compiler": _commands("cc"),
    "Ceph": (CEPH / "usr/bin/radosgw").exists,
    "Go": _commands("go"),
    "Java": _commands("java"),
    "libfaketime": faketime,
    "Node": _commands("node"),
    "nsqjs": _npm("e2e/peers/node_modules/nsqjs"),
    "Postgres": postgres,
}
MODULES: Final = frozenset(
    {
        "airflow",
        "dagster",
        "helm_python",
        "ipykernel",
        "matplotlib",
        "nbclient",
        "obstore",
        "pyarrow",
        "pyspark",
        "taskiq_redis",
    }
)
_PACKAGES: Final = ("pyspark", "pyarrow")  # they come with `scripts/setup dev,spark`
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tests/spark": ("Java", *_PACKAGES),
    **{f"tests/{folder}": _PACKAGES for folder in ("nsqcommon/bodies", "nsqpipe", "pyspark_nsq")},
}


class Unusable(pytest.Module):
    """A file that is not imported, because the machine lacks what its folder needs."""

    def collect(self) -> Iterator[pytest.Item]:
        need(*needed_by(self.path))
        yield from ()


def needed_by(file: Path) -> tuple[str, ...]:
    """Return what the file's folder needs."""
    return next((names for folder, names in FOLDERS.items() if file.is_relative_to(_ROOT / folder)), ())


def missing(*names: str) -> str:
    """Return what the machine lacks first of these, as in "no curl", or ""."""
    return next((f"no {name}" for name in names if not _is_there(name)), "")


def need(*names: str) -> None:
    """Skip the test, or the file that is being imported, if something is missing. In CI fail it."""
    if not (reason := missing(*names)):
        return
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI has to have it: scripts/bring-tools", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def _is_there(name: str) -> bool:
    if name in MODULES:
        return find_spec(name) is not None
    return bool(NAMED[name]()) if name in NAMED else shutil.which(name) is not None
