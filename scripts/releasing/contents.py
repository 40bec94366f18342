"""The packages in a container image, asked of the image itself: they are what pip and apt chose when it was built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from packaging.utils import canonicalize_name

from nsqcommon.version import DISTRIBUTION
from scripts.releasing.building import run
from scripts.releasing.dependencies import Package, package_of
from scripts.releasing.project import Refused

# Runs inside the image, so it imports nothing of ours.
_PROBE: Final = """
import importlib.metadata, json, pathlib, platform, subprocess, sys, sysconfig
def texts_in(path):
    return sorted(it.read_text("METADATA") or "" for it in importlib.metadata.distributions(path=path))
of_base = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
print(json.dumps({
    "python": platform.python_version(),
    "tini": subprocess.run(["tini", "--version"], capture_output=True, text=True).stdout,
    "metadata": texts_in(sys.path) + texts_in([of_base]),
    "debian": pathlib.Path("/var/lib/dpkg/status").read_text("utf-8"),
}))
"""
_VERSION: Final = re.compile(r"\d[\d.]*\d")
_FIELD: Final = re.compile(r"^([A-Za-z-]+): (.*)$", re.MULTILINE)


def packages_in(image: str) -> list[Package]:
    """Return Python, tini, and what pip and apt have installed, but for our own wheel. Raises `Refused`."""
    command = ["docker", "run", "--rm", "--network=none", "--entrypoint=python3", image, "-c", _PROBE]
    found: dict[str, Any] = json.loads(run(command))
    of_python = [*_python_packages(found["metadata"])]
    if all(it.name != DISTRIBUTION for it in of_python):
        raise Refused(f"{image}: its python3 does not find {DISTRIBUTION}, so it may not find other packages either")
    return [
        _unpackaged("python", found["python"], "PSF-2.0", "The interpreter of the base image"),
        _unpackaged("tini", found["tini"], "MIT", "PID 1: forwards signals and reaps processes"),
        *(it for it in of_python if it.name != DISTRIBUTION),
        *_debian_packages(found["debian"]),
    ]


def _unpackaged(name: str, said: str, licence: str, about: str) -> Package:
    version = _VERSION.search(said)
    if version is None:
        raise Refused(f"{name} in an image states no version: {said!r}")
    return Package(name, version[0], licence, about, is_required=True, purl_type="generic")


def _python_packages(texts: Iterable[str]) -> Iterator[Package]:
    with TemporaryDirectory() as folder:
        for number, text in enumerate(filter(None, texts)):
            info = Path(folder, f"{number}.dist-info")
            info.mkdir()
            (info / "METADATA").write_text(text, encoding="utf-8")
            dist = Distribution.at(info)
            yield package_of(canonicalize_name(dist.metadata["Name"]), dist, is_required=True)


def _debian_packages(status: str) -> Iterator[Package]:
    for stanza in status.split("\n\n"):
        fields = dict(_FIELD.findall(stanza))
        if fields.get("Status", "").endswith(" installed"):
            name = fields["Package"]
            # Debian states licences as prose, in a file that each package has to install.
            licence = f"/usr/share/doc/{name}/copyright in the image"
            about = fields.get("Description", "")
            yield Package(name, fields["Version"], licence, about, is_required=True, purl_type="deb")
