"""`scripts/release`: build, check, prepare."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from scripts.command_line import option, read_options
from scripts.releasing.archives import differences, sha256
from scripts.releasing.contents import packages_in
from scripts.releasing.dependencies import Package, licences_table, needed_by
from scripts.releasing.distributions import Distribution, distributions_of, stage
from scripts.releasing.images import Image, build_images, missing_engine
from scripts.releasing.notes import notes_of, write_entry
from scripts.releasing.project import Project, Refused, Release
from scripts.releasing.pythons import compiler_version, pythons
from scripts.releasing.sbom import image_sbom, sbom_of
from scripts.releasing.source import build_sdist, export, unpack
from scripts.releasing.wheels import build_compiled, build_pure

ROOT: Final = Path(__file__).resolve().parents[2]
ABOUT: Final = """\
Build what a release consists of, from the last commit: nsqclient and nsq-suite, each as an sdist and a wheel that is
pure Python; of nsq-suite also a wheel with the compiled core for each Python here that can compile it; for each of them
an SBOM (CycloneDX) and a table of licences; the notes, SHA256SUMS, and the container images where an engine runs. The
same commit gives the same bytes.
"""


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    out: Path = option(ROOT / "dist", "where to (default: dist)", word="FOLDER")
    pure: bool = option(False, "leave out the compiled wheels, which take minutes")
    no_images: bool = option(False, "leave out the container images")
    check: bool = option(False, "build twice, in two folders, and compare all bytes")
    prepare: str = option("", "write this version and its entry of CHANGELOG.md, to be committed", word="VERSION")
    next: str = option("", "write the version that is developed next, such as 0.2.0.dev0", word="VERSION")

    def __post_init__(self) -> None:
        if self.check + bool(self.prepare) + bool(self.next) > 1:
            raise ValueError("only one of --check, --prepare and --next")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    flags = read_options(ReleaseOptions, arguments, name="scripts/release", about=ABOUT)
    project = Project(root)
    try:
        if flags.prepare:
            _prepare(project, flags.prepare)
        elif flags.next:
            _begin(project, flags.next)
        else:
            _release(project, flags)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


# What one does before and after


def _prepare(project: Project, version: str) -> None:
    project.check_clean()
    project.check_unreleased(version)
    if ".dev" in version:
        raise Refused(f"{version} is a version in development: that is for `scripts/release --next`")
    date = project.release_date()
    project.set_version(version)
    write_entry(project, version, date)
    say(
        f"pyproject.toml, Chart.yaml and CHANGELOG.md have {version}. "
        f"Read the entry, then: git commit --all --message='Release {version}'"
    )


def _begin(project: Project, version: str) -> None:
    project.check_clean()
    project.set_version(version)
    say(f"pyproject.toml and Chart.yaml have {version}: git commit --all --message='Begin {version}'")


# The release


def _release(project: Project, flags: ReleaseOptions) -> None:
    release = project.release()
    say(f"{release.version}, commit {release.commit[:8]} of {release.date}")
    out = flags.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    files = _build(project, release, out, compiles=not flags.pure)
    if flags.check:
        _check(project, release, files, compiles=not flags.pure)
    if not flags.no_images:
        files = _with_sums(out, [*files, *_images(project, release, out)])
    say(f"done: {len(files)} files in {out}")


def _build(project: Project, release: Release, out: Path, *, compiles: bool) -> list[Path]:
    """Write all files into a folder that may have others, and return them."""
    notes = out / f"nsq_suite-{release.version}.notes.md"
    notes.write_text(notes_of(project, release), encoding="utf-8")
    with TemporaryDirectory(prefix="nsq-release-") as folder:
        artefacts = [*_artefacts(project, release, Path(folder), out, compiles=compiles)]
    documents = [it for artefact in artefacts for it in _documents(project, release, artefact, artefacts)]
    return _with_sums(out, [*artefacts, *documents, notes])


def _with_sums(out: Path, files: list[Path]) -> list[Path]:
    """Write the checksums of these files, and return the files with that of the checksums."""
    sums = out / "SHA256SUMS"
    summed = sorted({*files} - {sums})
    sums.write_text("".join(f"{sha256(it)}  {it.name}\n" for it in summed), encoding="utf-8")
    return [*summed, sums]


def _artefacts(project: Project, release: Release, scratch: Path, out: Path, *, compiles: bool) -> Iterator[Path]:
    tree = export(project, release.commit, scratch)
    client, suite = distributions_of(tree)
    yield from _sdist_and_pure(client, tree, release, scratch / client.name, out)
    source = yield from _sdist_and_pure(suite, tree, release, scratch / suite.name, out)
    for python in pythons(project) if compiles else ():
        if python.lacks:
            say(f"no compiled wheel for python{python.version}: {python.lacks}")
            continue
        with step(f"compiled wheel for python{python.version}, which takes minutes"):
            compiled = build_compiled(source, release, python, scratch, out)
        yield compiled


def _sdist_and_pure(
    distribution: Distribution, tree: Path, release: Release, scratch: Path, out: Path
) -> Generator[Path, None, Path]:
    """Yield the sdist and the pure wheel of one distribution, and return the folder that wheels are built from."""
    with step(f"sdist of {distribution.name}"):
        sdist = build_sdist(stage(distribution, tree, scratch / "staged"), release, scratch, out)
    yield sdist
    source = unpack(sdist, scratch / "sdist")
    with step(f"pure wheel of {distribution.name}"):
        pure = build_pure(source, release, scratch, out)
    yield pure
    return source


def _documents(project: Project, release: Release, artefact: Path, beside: Sequence[Path]) -> Iterator[Path]:
    needed = needed_by(artefact, beside)
    if "none-any" not in artefact.name and artefact.suffix == ".whl":
        needed = needed.with_package(_runtime(project))
    sbom = artefact.with_name(f"{artefact.name}.cdx.json")
    sbom.write_text(sbom_of(artefact, needed, release), encoding="utf-8")
    licences = artefact.with_name(f"{artefact.name}.licences.md")
    licences.write_text(licences_table(artefact.name, needed.packages), encoding="utf-8")
    if needed.missing:
        say(f"{sbom.name}: without {', '.join(needed.missing)}, which extras need and which are not installed here")
    yield from (sbom, licences)


def _runtime(project: Project) -> Package:
    return Package(
        "mypy", compiler_version(project), "MIT", "mypyc's C runtime, compiled into the modules", is_required=True
    )


def _check(project: Project, release: Release, files: list[Path], *, compiles: bool) -> None:
    say("once more, elsewhere")
    with TemporaryDirectory(prefix="nsq-release-again-") as folder:
        again = _build(project, release, Path(folder), compiles=compiles)
        differing = [
            f"{one.name}: {', '.join(found)}"
            for one, other in zip(files, again, strict=True)
            if (found := differences(one, other))
        ]
    if differing:
        raise Refused("two builds differ:\n" + "\n".join(differing))
    say(f"all {len(files)} files are the same, byte for byte")


def _images(project: Project, release: Release, out: Path) -> Iterator[Path]:
    """Build the images, and yield the documents of each."""
    reason = missing_engine()
    if reason:
        say(f"no images: {reason}")
        return
    with TemporaryDirectory(prefix="nsq-release-images-") as folder:
        for image in build_images(export(project, release.commit, Path(folder)), release):
            say(f"image {image.name} is {image.number}")
            packages = [*packages_in(image.name), _runtime(project)]
            yield from _image_documents(image, packages, release, out)


def _image_documents(image: Image, packages: Sequence[Package], release: Release, out: Path) -> Iterator[Path]:
    sbom = out / f"nsq_suite-{release.version}.{image.target}.image.cdx.json"
    sbom.write_text(image_sbom(image, packages, release), encoding="utf-8")
    licences = out / f"nsq_suite-{release.version}.{image.target}.image.licences.md"
    licences.write_text(licences_table(f"image {image.name}", packages), encoding="utf-8")
    yield from (sbom, licences)


# What it says


def say(line: str) -> None:
    print(f"release: {line}", flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    say(f"{name} ...")
    began = time.monotonic()
    yield
    say(f"{name}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
