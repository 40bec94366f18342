"""The container images, where there is an engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.releasing.building import run
from scripts.releasing.project import Release

IMAGES: Final = ("nsqd", "nsqlookupd", "nsqadmin", "tools", "pipeline")  # targets of deploy/docker/Dockerfile


@dataclass(frozen=True, slots=True)
class Image:
    target: str
    name: str  # "nsq-suite/nsqd:0.2.0"
    number: str  # "sha256:…"


def missing_engine() -> str:
    """Return why no images can be built, or ''."""
    if shutil.which("docker") is None:
        return "there is no docker"
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return "docker info: " + asked.stderr.strip().rpartition("\n")[2] if asked.returncode else ""


def build_images(tree: Path, release: Release) -> Iterator[Image]:
    """Build each image from the commit's tree, and yield it."""
    for target in IMAGES:
        name = f"nsq-suite/{target}:{release.version}"
        labels = {
            "org.opencontainers.image.version": release.version,
            "org.opencontainers.image.revision": release.commit,
        }
        flags = [f"--label={key}={value}" for key, value in labels.items()]
        run(
            ["docker", "build", f"--target={target}", f"--tag={name}", *flags, "--file=deploy/docker/Dockerfile", "."],
            cwd=tree,
        )
        yield Image(target, name, run(["docker", "inspect", "--format={{.Id}}", name]).strip())
