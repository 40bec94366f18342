"""Which Pythons on this machine can compile the core, and what the others lack."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.releasing.project import Project

_CLASSIFIER: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
_LEAST_SETUPTOOLS: Final = 77
_PROBE: Final = """
import json, os, shutil, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version
def version_of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"
compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "setuptools": version_of("setuptools"),
    "mypy": version_of("mypy"),
    "compiler": "" if shutil.which(compiler) else compiler,
    "header": "" if os.path.exists(header) else header,
}))
"""


@dataclass(frozen=True, slots=True)
class Python:
    version: str  # "3.11"
    path: Path
    lacks: str  # empty: it can compile


def pythons(project: Project) -> Iterator[Python]:
    """Yield each version of Python that we support and that is here: our own, and those on PATH."""
    own = "{}.{}".format(*sys.version_info)
    mypy = compiler_version(project)
    for version in _supported(project):
        path = sys.executable if version == own else shutil.which(f"python{version}")
        if path is not None:
            yield Python(version, Path(path), _lacks(_answers(path), mypy))


def compiler_version(project: Project) -> str:
    """Return the version of mypy, and so of mypyc, that setup.py compiles with."""
    found = re.search(r'^MYPY: Final = "mypy==(.+?)"', (project.root / "setup.py").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _supported(project: Project) -> list[str]:
    return [match[1] for it in project.settings()["classifiers"] if (match := _CLASSIFIER.match(it))]


def _answers(python: str) -> dict[str, Any]:
    done = subprocess.run([python, "-P", "-c", _PROBE], capture_output=True, text=True, check=False)
    answers: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return answers


def _lacks(found: dict[str, Any], mypy: str) -> str:
    if not found:
        return "it does not start"
    if found["compiler"]:
        return f"there is no C compiler {found['compiler']}"
    if found["header"]:
        return f"it has no {found['header']} (Debian: python3-dev)"
    if found["mypy"] != mypy or int(found["setuptools"].partition(".")[0]) < _LEAST_SETUPTOOLS:
        python = f"python{found['version']}"
        return f"it has no mypy {mypy} with setuptools {_LEAST_SETUPTOOLS} ({python} -m pip install mypy=={mypy} 'setuptools>={_LEAST_SETUPTOOLS}')"
    return ""
