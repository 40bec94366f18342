"""Compares the sizes of checkouts: installed distributions, times of imports, and lines of code.

    python -m scripts.sizes BEFORE_TREE AFTER_TREE > bench/results/house/sizes.md

We build wheels with this environment's setuptools, without a network, and read the dependencies from its packages.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Final

from scripts.command_line import argument, read_options
from scripts.releasing.building import build
from scripts.releasing.dependencies import metadata_of, names_needed
from scripts.releasing.distributions import Distribution, distributions_of, stage

_INTERPRETERS: Final = 11
_NOT_SHIPPED: Final = frozenset({"dev", "site", "bench-jobs", "examples"})  # extras for this repository alone
_NOT_FOR_PEOPLE: Final = frozenset({"nsqpipe-worker"})  # commands
_ENDINGS: Final = (".py", ".html", ".js", ".css")  # of a package's files that we write
_RESULTS: Final = "bench/results/"
_MISSING: Final = "–"

_LEGEND: Final = f"""\
Names stand for checkouts of these commits.
Installed sizes are those of our own files, as a wheel unpacks them; "in all" counts all packages that pip installs beside them, with their size here.
An extra's row names what it adds.
Times are processor time beyond that of an empty interpreter, the median of {_INTERPRETERS} fresh ones.
Lines are those of files that we write: Python, and nsqadmin's templates, scripts and styles.
"""

_Rows = dict[str, str]  # a measure, and its value in one tree


@dataclass(slots=True)
class _Tree:
    path: Path
    installed: Path  # a folder with both distributions in it
    rows: dict[str, _Rows] = field(default_factory=dict)  # by the heading of the table


@dataclass(frozen=True, kw_only=True)
class SizesOptions:
    trees: tuple[Path, ...] = argument(word="TREE")


def main() -> int:
    about = "Compare the sizes of checkouts, in tables of Markdown; takes two minutes."
    chosen = read_options(SizesOptions, name="python -m scripts.sizes", about=about)
    with tempfile.TemporaryDirectory(prefix="nsq-sizes-") as temporary:
        trees = [_Tree(it.resolve(), Path(temporary, f"installed-{at}")) for at, it in enumerate(chosen.trees)]
        for at, tree in enumerate(trees):
            _measure(tree, Path(temporary, f"build-{at}"))
        _time_imports(trees)
    print("# Sizes of checkouts\n\n`python -m scripts.sizes " + " ".join(_name_of(it.path) for it in trees) + "`\n")
    print(_LEGEND)
    print(_tables(trees), end="")
    return 0


def _measure(tree: _Tree, folder: Path) -> None:
    wheels = {it.name: _built(it, tree.path, folder / it.name) for it in distributions_of(tree.path)}
    installed, needs = {}, {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree.installed)
            unpacked = sum(it.file_size for it in archive.infolist())
        installed[name] = f"{_kilobytes(unpacked)} (wheel {_kilobytes(wheel.stat().st_size)})"
        always, _ = names_needed(wheel, "")
        for extra in ("", *_extras(wheel)):
            direct, in_all = names_needed(wheel, extra, wheels.values())
            size = _kilobytes(sum(_size_of(it) for it in in_all - wheels.keys()))
            names = ", ".join(sorted(direct - always if extra else direct)) or "nothing more"
            needs[f"{name}[{extra}]" if extra else name] = f"{names}; {len(in_all)} in all, {size}"
    tree.rows["Installed"] = installed
    tree.rows["Needed"] = needs
    tree.rows["Lines and words"] = dict(_written(tree.path))


def _built(distribution: Distribution, tree: Path, folder: Path) -> Path:
    source = stage(distribution, tree, folder / "source")
    return build("wheel", source, folder / "wheel", python=Path(sys.executable), timestamp=1_700_000_000)


def _extras(wheel: Path) -> list[str]:
    return sorted({*metadata_of(wheel).get_all("Provides-Extra", [])} - _NOT_SHIPPED)


def _size_of(name: str) -> int:
    """Return the installed size of a package, or 0 if it isn't installed here."""
    try:
        files = metadata.files(name) or ()
    except metadata.PackageNotFoundError:
        return 0
    return sum(it.size or 0 for it in files)


# Imports


def _time_imports(trees: list[_Tree]) -> None:
    """Time the trees in turn, so that other load affects all of them."""
    for tree in trees:
        compileall.compile_dir(tree.installed, quiet=2, workers=1)
    codes = [dict(_starts(tree.installed)) for tree in trees]
    for name in sorted({name for of_tree in codes for name in of_tree}):
        took: list[list[float]] = [[] for _ in trees]
        for _ in range(_INTERPRETERS):
            for tree, of_tree, times in zip(trees, codes, took, strict=True):
                if name in of_tree:
                    times.append(_processor_time(tree.installed, of_tree[name]))
        for tree, times in zip(trees, took, strict=True):
            value = f"{median(times) * 1000:.1f} ms" if times else _MISSING
            tree.rows.setdefault("Processor time of imports and starts", {})[name] = value


def _starts(installed: Path) -> Iterator[tuple[str, str]]:
    """Yield code to time, with its name: the import of each package and daemon, and the help of each command."""
    for package in (it.parent for it in installed.glob("*/__init__.py")):
        yield f"`import {package.name}`", f"import {package.name}"
        if (package / "daemon.py").exists():
            yield f"`import {package.name}.daemon`", f"import {package.name}.daemon"
    for command in (it for dist in metadata.distributions(path=[str(installed)]) for it in dist.entry_points):
        if command.group == "console_scripts" and command.name not in _NOT_FOR_PEOPLE:
            start = f"import sys; sys.argv = [{command.name!r}, '--help']; "
            yield f"`{command.name} --help`", start + f"from {command.module} import {command.attr} as main; main()"


def _processor_time(installed: Path, code: str) -> float:
    """Run code in a fresh interpreter. Return its processor time in seconds, without the interpreter's start."""
    timed = f"import atexit, sys, time; sys.path.insert(0, {str(installed)!r}); "
    timed += (
        "began = time.process_time(); atexit.register(lambda: print(time.process_time() - began, file=sys.stderr)); "
    )
    done = subprocess.run([sys.executable, "-I", "-c", timed + code], capture_output=True, text=True, check=True)
    return float(done.stderr.splitlines()[-1])


# What we wrote


def _written(tree: Path) -> Iterator[tuple[str, str]]:
    files = [tree / it for it in _git(tree, "ls-files", "-z").split("\0") if it]
    names = {it: it.relative_to(tree).as_posix() for it in files}
    product = 0
    for package in sorted(
        {it.parent for it in files if it.name == "__init__.py" and it.parent.parent in (tree, tree / "common")}
    ):
        if package.name in ("tests", "bench", "scripts"):
            continue
        count = sum(_lines(it) for it in files if it.suffix in _ENDINGS and it.is_relative_to(package))
        product += count
        yield f"{package.name}: lines", str(count)
    yield "product: lines", str(product)
    modules = [it for it in files if it.suffix == ".py" and _top(tree, it).startswith(("nsq", "pyspark", "common"))]
    yield "product: modules", str(len(modules))
    for folder in ("bench", "scripts", "tests"):
        own = [it for it in files if _top(tree, it) == folder and not names[it].startswith(_RESULTS) and _is_code(it)]
        yield f"{folder}: lines", str(sum(map(_lines, own)))
    pages = [it for it in files if it.suffix == ".md"]
    for title, start in (
        ("docs", "docs/"),
        ("of these, decisions", "docs/decisions/"),
        ("examples", "examples/"),
        ("README", "README.md"),
    ):
        yield f"{title}: words", str(sum(len(it.read_text().split()) for it in pages if names[it].startswith(start)))


def _top(tree: Path, file: Path) -> str:
    return file.relative_to(tree).parts[0]


def _is_code(file: Path) -> bool:
    return file.suffix in (".py", ".c", ".sh") or (not file.suffix and file.read_bytes().startswith(b"#!"))


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True).stdout


# The tables


def _tables(trees: list[_Tree]) -> str:
    text = ""
    for title in trees[0].rows:
        text += (
            f"## {title}\n\n|  | {' | '.join(_name_of(it.path) for it in trees)} |\n| --- |{' --- |' * len(trees)}\n"
        )
        measures = dict.fromkeys(measure for tree in trees for measure in tree.rows[title])
        for measure in measures:
            values = [tree.rows[title].get(measure, _MISSING) for tree in trees]
            text += f"| {measure} | {' | '.join(values)} |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def _name_of(tree: Path) -> str:
    return _git(tree, "rev-parse", "--short=8", "HEAD").strip()


def _kilobytes(size: int) -> str:
    return f"{size / 1000:,.0f} kB"


if __name__ == "__main__":
    sys.exit(main())
