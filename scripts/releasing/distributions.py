"""What a checkout is released as: `nsqclient`, and `nsq-suite`, which needs exactly the same version of it.

A checkout is one project, so that pip never asks an index for one part of it while it installs another. Its
pyproject.toml describes the whole, and of that two projects are made here, in folders of their own:

    nsqclient   the client, and nsqcommon, which it shares with the daemons; always pure Python
    nsq-suite   everything else, and in a compiled wheel also what is compiled of nsqcommon: all compiled modules use one
                library, which can be in one wheel only

Whatever both have, such as the version, stands in pyproject.toml once. What is the client's own is in
[tool.nsq-suite.client] there. docs/decisions/0025-two-distributions.md says why there are two.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

CLIENT: Final = "nsqclient"
_OF_THE_SUITE: Final = ("scripts", "entry-points")  # keys of [project] that the client does not have
_OF_THE_CLIENT: Final = ("description", "keywords")  # keys of [project] that both have, and differently
_IGNORED: Final = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True, slots=True)
class Distribution:
    pyproject: Mapping[str, Any]
    readme: str  # a path in the checkout; in the distribution it is README.md
    also: tuple[str, ...] = ()  # files and folders that builds need beside the packages

    @property
    def name(self) -> str:
        name: str = self.pyproject["project"]["name"]
        return name


def distributions_of(tree: Path) -> tuple[Distribution, Distribution]:
    """Return the client and the suite, as the pyproject.toml of a checkout describes them."""
    whole = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    own = whole["tool"]["nsq-suite"]["client"]
    project, packages = whole["project"], whole["tool"]["setuptools"]["packages"]["find"]["include"]
    shared = {key: value for key, value in project.items() if key not in _OF_THE_SUITE}
    client = {
        **shared,
        **{key: own[key] for key in _OF_THE_CLIENT},
        "name": CLIENT,
        "readme": "README.md",
        "dependencies": _only(project["dependencies"], own["dependencies"]),
        "optional-dependencies": {extra: project["optional-dependencies"][extra] for extra in own["extras"]},
    }
    suite = {**project, "dependencies": [*project["dependencies"], f"{CLIENT}=={project['version']}"]}
    return (
        Distribution(_pyproject(whole, client, own["packages"]), own["readme"]),
        Distribution(
            _pyproject(whole, suite, [it for it in packages if it not in own["packages"]]),
            project["readme"],
            also=("setup.py", "common"),
        ),
    )


def _only(requirements: list[str], names: list[str]) -> list[str]:
    """Return the requirements of these packages, with the versions that they have in the whole."""
    by_name = {Requirement(it).name: it for it in requirements}
    return [by_name[name] for name in names]


def _pyproject(whole: Mapping[str, Any], project: Mapping[str, Any], packages: list[str]) -> Mapping[str, Any]:
    setuptools = whole["tool"]["setuptools"]
    find = {**setuptools["packages"]["find"], "include": packages}
    data = {key: value for key, value in setuptools.get("package-data", {}).items() if _is_among(key, packages)}
    return {
        "build-system": whole["build-system"],
        "project": project,
        "tool": {"setuptools": {"packages": {"find": find}, "package-data": data}},
    }


def _is_among(package: str, patterns: list[str]) -> bool:
    return package == "*" or any(fnmatch(package, it) for it in patterns)


# The folder of one of them


def stage(distribution: Distribution, tree: Path, into: Path) -> Path:
    """Write the project of one distribution, from the files of a checkout, and return its folder."""
    into.mkdir(parents=True)
    pyproject = distribution.pyproject
    (into / "pyproject.toml").write_text(as_toml(pyproject), encoding="utf-8")
    shutil.copy(tree / distribution.readme, into / "README.md")
    for name in (*pyproject["project"].get("license-files", ()), *distribution.also, *_packages(distribution, tree)):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, into / name, ignore=_IGNORED, dirs_exist_ok=True)
        else:
            shutil.copy(tree / name, into / name)
    if folders := [name for name in distribution.also if (tree / name).is_dir()]:  # into the sdist, not into the wheel
        (into / "MANIFEST.in").write_text("".join(f"graft {name}\n" for name in folders), encoding="utf-8")
    return into


def _packages(distribution: Distribution, tree: Path) -> Iterator[str]:
    """Yield the folders of the packages, as paths in the checkout."""
    find = distribution.pyproject["tool"]["setuptools"]["packages"]["find"]
    for where in find["where"]:
        for folder in sorted((tree / where).iterdir()):
            if folder.is_dir() and _is_among(folder.name, find["include"]):
                yield str(folder.relative_to(tree))


def as_toml(table: Mapping[str, Any], name: str = "") -> str:
    """Write a table as TOML: what is no table first, as whatever follows a header belongs to it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]\n"] if name and plain else []
    lines += [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    inner = [
        as_toml(value, f"{name}.{_key(key)}" if name else _key(key))
        for key, value in table.items()
        if isinstance(value, Mapping)
    ]
    return "".join(lines) + ("\n" if lines else "") + "".join(inner)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _value(value: object) -> str:
    match value:
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_key(key)} = {_value(it)}" for key, it in value.items()) + "}"
        case str() | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)  # TOML writes these as JSON does
        case _:
            raise TypeError(f"{value!r} is nothing that pyproject.toml has had so far")
