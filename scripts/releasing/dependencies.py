"""The packages that an artefact needs, directly and through others, with their licences.

They are read from the metadata of what is installed here, which is what the tests have run with.
"""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NOT_SHIPPED: Final = frozenset({"dev", "examples"})  # extras for this repository alone
_CLASSIFIER: Final = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_SPDX: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_LONGEST_NAME: Final = 60  # some packages have the whole text where the licence's name belongs


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str
    about: str
    is_required: bool  # also without any extra
    needs: tuple[str, ...] = ()
    purl_type: str = "pypi"  # or "deb", or "generic" for what no package manager knows


@dataclass(frozen=True, slots=True)
class Needed:
    packages: tuple[Package, ...]
    missing: tuple[str, ...]  # needed by extras, and not installed here
    direct: tuple[str, ...]

    def with_package(self, package: Package) -> Needed:
        return replace(self, packages=(*self.packages, package), direct=(*self.direct, package.name))


class _Known:
    """The metadata of what is installed here, and of wheels of ours that are not."""

    def __init__(self, wheels: Iterable[Path]) -> None:
        dists = map(_distribution_in, wheels)
        self._ours: dict[str, metadata.Distribution] = {canonicalize_name(it.metadata["Name"]): it for it in dists}

    def get(self, name: str) -> metadata.Distribution | None:
        try:
            return self._ours.get(name) or metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None


def _distribution_in(wheel: Path) -> metadata.Distribution:
    info = next(it for it in zipfile.Path(wheel).iterdir() if it.name.endswith(".dist-info"))
    return metadata.PathDistribution(info)


def needed_by(artefact: Path, beside: Iterable[Path] = ()) -> Needed:
    """Return what an artefact needs. It may need wheels of the same release, which are `beside` it."""
    known = _Known(it for it in beside if it.suffix == ".whl" and it != artefact)
    about = metadata_of(artefact)
    requirements = [Requirement(it) for it in about.get_all("Requires-Dist", [])]
    extras = sorted({*about.get_all("Provides-Extra", [])} - _NOT_SHIPPED)
    required = {name for name, _ in _closure(requirements, [""], known)}
    everything = sorted({*_closure(requirements, ["", *extras], known)})
    found = [(name, dist) for name, _ in everything if (dist := known.get(name)) is not None]
    packages = {name: package_of(name, dist, is_required=name in required) for name, dist in found}
    return Needed(
        tuple(packages.values()),
        tuple(sorted({name for name, _ in everything} - packages.keys())),
        tuple(sorted({canonicalize_name(it.name) for it in _wanted(requirements, ["", *extras])} & packages.keys())),
    )


def names_needed(artefact: Path, extra: str, beside: Iterable[Path] = ()) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that an artefact with one extra, or "" for none, needs directly, and all of them."""
    requirements = [Requirement(it) for it in metadata_of(artefact).get_all("Requires-Dist", [])]
    direct = {canonicalize_name(it.name) for it in _wanted(requirements, ["", extra])}
    found = _closure(requirements, ["", extra], _Known(beside))
    return frozenset(direct), frozenset(name for name, _ in found)


def metadata_of(artefact: Path) -> Message:
    """Return the metadata that pip reads of a wheel or an sdist."""
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as wheel:
            (name,) = (it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(wheel.read(name))
    with tarfile.open(artefact) as sdist:
        file = sdist.extractfile(f"{artefact.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return email.message_from_bytes(file.read())


def _closure(requirements: Iterable[Requirement], extras: Iterable[str], known: _Known) -> Iterator[tuple[str, str]]:
    """Yield each package that is needed, once for each extra of its own that is asked for, and "" for none."""
    seen: set[tuple[str, str]] = set()
    waiting = [*_wanted(requirements, extras)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - seen
        if not new:
            continue
        seen |= new
        dist = known.get(name)
        if dist is not None:
            own = [Requirement(it) for it in dist.requires or ()]
            waiting += _wanted(own, ["", *requirement.extras])
    yield from seen


def _wanted(requirements: Iterable[Requirement], extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements that hold on this Python and platform with one of the extras."""
    names = [*extras]
    for it in requirements:
        if it.marker is None or any(it.marker.evaluate({"extra": extra}) for extra in names):
            yield it


def package_of(name: str, dist: metadata.Distribution, *, is_required: bool) -> Package:
    needs = {canonicalize_name(it.name) for it in _wanted([Requirement(it) for it in dist.requires or ()], [""])}
    about = (dist.metadata["Summary"] or "").strip() if "Summary" in dist.metadata else ""
    return Package(name, dist.version, licence_of(dist), about, is_required, tuple(sorted(needs)))


def licence_of(dist: metadata.Distribution) -> str:
    """Return the licence as an SPDX expression where the package says that much, else in its own words."""
    about = dist.metadata
    if "License-Expression" in about:
        return str(about["License-Expression"])
    named = [match[1] for it in about.get_all("Classifier") or () if (match := _CLASSIFIER.match(it))]
    said = str(about["License"]).strip() if "License" in about else ""
    if 0 < len(said) <= _LONGEST_NAME and said != "UNKNOWN":
        return _SPDX.get(said, said)
    return " AND ".join(_SPDX.get(it, it) for it in named) or "not stated"


def licences_table(artefact: str, packages: Iterable[Package]) -> str:
    rows = "".join(
        f"| {it.name} | {it.version} | {it.licence} | {'always' if it.is_required else 'with an extra'} |\n"
        for it in packages
    )
    return f"# Licences of what {artefact} needs\n\n| Package | Version | Licence | Needed |\n| --- | --- | --- | --- |\n{rows}"
