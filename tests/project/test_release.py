"""scripts/release: what it refuses, what it writes, and that it writes the same each time.

A small project stands for ours, which takes minutes. `tests/e2e/test_wheels.py` installs our own wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.releasing.__main__ import main
from scripts.releasing.archives import differences, write_plain_tar_gz
from scripts.releasing.contents import packages_in
from scripts.releasing.images import IMAGES, missing_engine
from scripts.releasing.project import Project, Refused, as_semantic
from scripts.releasing.pythons import compiler_version, pythons

ROOT: Final = Path(__file__).resolve().parents[2]
CLOCK: Final = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
PYPROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "nsq-suite"
version = "0.1.0.dev0"
description = "A small one"
readme = "README.md"
license = "MIT"
classifiers = []
dependencies = ["trio>=0.27"]

[project.optional-dependencies]
admin = ["jinja2>=3.1", "no-such-package>=1"]
dev = ["pytest"]

[tool.setuptools.packages.find]
where = [".", "common"]
include = ["nsqclient*", "nsqcommon*", "nsqd*"]

[tool.nsq-suite.client]
description = "Its client"
readme = "nsqclient/README.md"
keywords = []
packages = ["nsqclient*", "nsqcommon*"]
dependencies = ["trio"]
extras = []
"""
PURE: Final = "-py3-none-any.whl"
TOWNCRIER: Final = "\n[tool.towncrier]" + (ROOT / "pyproject.toml").read_text().partition("\n[tool.towncrier]")[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def make_repository(root: Path) -> Path:
    template = (ROOT / "changes.d" / "template.md").read_text(encoding="utf-8")
    for name, text in {
        "pyproject.toml": PYPROJECT + TOWNCRIER,
        "setup.py": 'from typing import Final\n\nfrom setuptools import setup\n\nMYPY: Final = "mypy==1"\nsetup()\n',
        "README.md": "The suite.\n",
        "nsqclient/README.md": "The client.\n",
        "nsqclient/__init__.py": "",
        "common/nsqcommon/__init__.py": "",
        "nsqd/__init__.py": "",
        "deploy/helm/nsq/Chart.yaml": "apiVersion: v2\nversion: 0.0.1\nappVersion: 0.0.1 # a tag\n",
        "CHANGELOG.md": "# Changes\n\n<!-- changes start here -->\n",
        "changes.d/template.md": template,
        "changes.d/one.added.md": "One thing.\nMore of it.\n",
        "changes.d/release.summary.md": "What it is about.\n\n- A point.\n\nAn end.\n",
        ".gitignore": "/build/\n*.egg-info/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.com")
    return subprocess.run(
        ["git", "-C", str(root), *identity, *arguments],
        env={**os.environ, **CLOCK},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=m")


def build(root: Path, out: Path, *flags: str) -> int:
    return main([f"--out={out}", "--pure", "--no-images", *flags], root)


# What it refuses


def test_what_is_not_committed_is_not_released(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "nsqd" / "new.py").write_text("")
    (repository / "pyproject.toml").write_text(PYPROJECT)
    assert build(repository, repository / "dist") == 1
    assert "not committed: pyproject.toml, nsqd/new.py." in capsys.readouterr().err
    assert not (repository / "dist").exists()


def test_a_version_is_released_once(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "tag", "--annotate", "--message=m", "v0.1.0.dev0")
    assert Project(repository).release().version == "0.1.0.dev0"  # the tagged commit may be built again
    (repository / "nsqd" / "new.py").write_text("")
    commit(repository)
    assert build(repository, tmp_path / "other") == 1
    assert "version 0.1.0.dev0 is released already: tag v0.1.0.dev0 is commit" in capsys.readouterr().err
    assert main(["--prepare=0.1.0.dev0"], repository) == 1


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--next=v0.2", "'v0.2' is no version as Python writes them"),
        ("--prepare=0.2.0-rc1", "'0.2.0-rc1' is no version as Python writes them"),
        ("--prepare=0.2.0.dev0", "0.2.0.dev0 is a version in development"),
    ],
)
def test_what_is_no_version_changes_nothing(
    repository: Path, flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag], repository) == 1
    assert said in capsys.readouterr().err
    assert git(repository, "status", "--porcelain") == ""


def test_a_release_needs_an_entry_of_the_changelog(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--next=0.1.0"], repository) == 0
    commit(repository)
    assert build(repository, tmp_path / "dist") == 1
    assert "CHANGELOG.md has no entry for 0.1.0: run `scripts/release --prepare 0.1.0`" in capsys.readouterr().err


def test_a_build_that_fails_is_shown(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "setup.py").write_text("raise ValueError('no such thing')\n")
    commit(repository)
    assert build(repository, tmp_path / "dist") == 1
    assert "ValueError: no such thing" in capsys.readouterr().err


# What it writes


def test_the_chart_has_the_version_as_helm_writes_it(repository: Path) -> None:
    chart = repository / "deploy" / "helm" / "nsq" / "Chart.yaml"
    assert main(["--next=0.2.0.dev0"], repository) == 0
    assert chart.read_text(encoding="utf-8") == "apiVersion: v2\nversion: 0.2.0-dev0\nappVersion: 0.2.0.dev0 # a tag\n"


@pytest.mark.parametrize(
    ("version", "semantic"), [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0-rc1"), ("1.0.0.dev2", "1.0.0-dev2")]
)
def test_versions_of_the_chart(version: str, semantic: str) -> None:
    assert as_semantic(version) == semantic


def test_a_release_from_its_preparation_to_its_files(repository: Path, tmp_path: Path) -> None:
    assert main(["--prepare=0.1.0"], repository) == 0
    assert "appVersion: 0.1.0 " in (repository / "deploy" / "helm" / "nsq" / "Chart.yaml").read_text(encoding="utf-8")
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "What it is about.\n\n- A point.\n\nAn end.\n\n### Added\n\n- One thing.\n  More of it.\n" in changelog
    assert not list((repository / "changes.d").glob("*.added.md"))
    commit(repository)
    out = tmp_path / "dist"
    assert build(repository, out, "--check") == 0
    artefacts = {f"{name}-0.1.0{kind}" for name in ("nsqclient", "nsq_suite") for kind in (".tar.gz", PURE)}
    documents = {f"{it}.{kind}" for it in artefacts for kind in ("cdx.json", "licences.md")}
    assert {it.name for it in out.iterdir()} == artefacts | documents | {"nsq_suite-0.1.0.notes.md", "SHA256SUMS"}
    notes = (out / "nsq_suite-0.1.0.notes.md").read_text(encoding="utf-8")
    assert notes.startswith("# nsq-suite 0.1.0\n\nWhat it is about.\n")
    lines = [line.partition("  ") for line in (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines()]
    sums = {name: checksum for checksum, _, name in lines}
    assert sums == {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sums}
    assert sums.keys() == {it.name for it in out.iterdir()} - {"SHA256SUMS"}
    check_documents(out)


def check_sbom(text: str) -> None:
    from cyclonedx.schema import SchemaVersion  # later: it takes a second, in each process that collects tests
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def check_documents(out: Path) -> None:
    name = f"nsq_suite-0.1.0{PURE}"
    text = (out / f"{name}.cdx.json").read_text(encoding="utf-8")
    check_sbom(text)
    sbom: Any = json.loads(text)
    assert (sbom["bomFormat"], sbom["metadata"]["timestamp"]) == ("CycloneDX", "2026-01-02T03:04:05+00:00")
    assert sbom["metadata"]["component"]["version"] == "0.1.0"
    components = {it["name"]: it for it in sbom["components"]}
    assert (components["trio"]["scope"], components["jinja2"]["scope"]) == ("required", "optional")
    assert components["outcome"]["licenses"]  # trio needs it
    assert "pytest" not in components
    needs = {it["ref"]: it.get("dependsOn", []) for it in sbom["dependencies"]}
    assert {it.partition("==")[0] for it in needs[name]} == {"jinja2", "nsqclient", "trio"}
    assert (components["nsqclient"]["version"], components["nsqclient"]["scope"]) == ("0.1.0", "required")
    assert [it.partition("==")[0] for it in needs["nsqclient==0.1.0"]] == ["trio"]
    assert {"name": "nsq-suite:not-installed", "value": "no-such-package"} in sbom["properties"]
    table = (out / f"{name}.licences.md").read_text(encoding="utf-8")
    assert re.search(r"^\| trio \| [\d.]+ \| MIT OR Apache-2.0 \| always \|$", table, re.MULTILINE)
    assert "| nsqclient | 0.1.0 | MIT | always |" in table
    of_the_client: Any = json.loads((out / f"nsqclient-0.1.0{PURE}.cdx.json").read_text(encoding="utf-8"))
    ours = of_the_client["metadata"]["component"]
    assert (ours["name"], ours["purl"].partition("?")[0]) == ("nsqclient", "pkg:pypi/nsqclient@0.1.0")
    assert {"jinja2", "nsqclient"}.isdisjoint(it["name"] for it in of_the_client["components"])


def test_the_sdist_does_not_say_who_packed_it_and_when(tmp_path: Path) -> None:
    packed = []
    for number, (mode, user) in enumerate(((0o664, "a"), (0o600, "b"))):
        raw, plain = tmp_path / f"raw{number}.tar.gz", tmp_path / f"plain{number}.tar.gz"
        with tarfile.open(raw, "w:gz") as archive:
            for name in ("b", "a") if number else ("a", "b"):
                member = tarfile.TarInfo(name)
                member.mode, member.uname, member.uid, member.mtime = mode, user, number, number
                archive.addfile(member)
        write_plain_tar_gz(raw, plain, 1_700_000_000)
        packed.append(plain)
    assert differences(*packed) == []


def test_what_differs_is_named(tmp_path: Path) -> None:
    packed = []
    for number in range(2):
        packed.append(tmp_path / f"{number}.tar.gz")
        (tmp_path / "file").write_text(str(number))
        with tarfile.open(packed[-1], "w:gz") as archive:
            archive.add(tmp_path / "file", "changed")
    assert differences(*packed) == ["changed"]


# Whom it builds for, and where


def test_our_own_python_is_among_those_that_compile() -> None:
    project = Project(ROOT)
    found = {it.version: it.lacks for it in pythons(project)}
    assert "{}.{}".format(*sys.version_info) in found
    assert not [it for it in found.values() if it and not re.search("no (C compiler|/|mypy)|not start", it)]
    assert f'"mypy=={compiler_version(project)}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_without_an_engine_it_says_why_there_are_no_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_engine() == "there is no docker"
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'nobody answers' >&2\nexit 1\n")
    docker.chmod(0o755)
    assert missing_engine() == "docker info: nobody answers"


IMAGE_ID: Final = "sha256:" + "5" * 64
IN_IMAGE: Final[dict[str, Any]] = {
    "python": "3.11.7",
    "tini": "tini version 0.19.0",
    "metadata": [
        "Metadata-Version: 2.1\nName: trio\nVersion: 0.30.0\nLicense-Expression: MIT OR Apache-2.0\n",
        "Metadata-Version: 2.1\nName: nsq-suite\nVersion: 0.1.0.dev0\n",
    ],
    "debian": "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\nDescription: GNU C Library\n more\n\n"
    "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
}
DOCKER: Final = """\
#!/bin/sh
echo "$PWD $@" >>{folder}/said
case "$1" in
build) [ -e nsqd/__init__.py ] && [ ! -e ignored ] ;;
inspect) echo {number} ;;
run) cat {folder}/in-image ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_docker(tmp_path, monkeypatch)


def make_docker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an engine on the path that builds nothing, and return the file with what it was asked."""
    command = folder / "bin" / "docker"
    command.parent.mkdir()
    command.write_text(DOCKER.format(folder=folder, number=IMAGE_ID))
    command.chmod(0o755)
    (folder / "in-image").write_text(json.dumps(IN_IMAGE))
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return folder / "said"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A release with images: what was said, the builds that the engine was asked for, and the files."""

    repository: Path
    said: str
    builds: list[str]
    out: Path


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    folder = tmp_path_factory.mktemp("shipped")
    repository, out = make_repository(folder / "repository"), folder / "dist"
    (repository / ".gitignore").write_text("ignored\n")
    commit(repository)
    (repository / "ignored").touch()  # the engine fails if it sees it
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as said:
        asked = make_docker(folder, patched)
        assert main([f"--out={out}", "--pure"], repository) == 0
    builds = [line for line in asked.read_text(encoding="utf-8").splitlines() if " build " in line]
    return Shipped(repository, said.getvalue(), builds, out)


def test_with_an_engine_images_have_the_version_as_tag(shipped: Shipped) -> None:
    for image, line in zip(IMAGES, shipped.builds, strict=True):
        assert f"build --target={image} --tag=nsq-suite/{image}:0.1.0.dev0 " in line
        assert f"release: image nsq-suite/{image}:0.1.0.dev0 is {IMAGE_ID}\n" in shipped.said


def test_images_are_built_from_the_commit(shipped: Shipped) -> None:
    folders = {line.partition(" ")[0] for line in shipped.builds}
    assert len(folders) == 1
    assert str(shipped.repository) not in folders


def test_each_image_has_an_sbom_and_licences_of_what_is_in_it(shipped: Shipped) -> None:
    out = shipped.out
    for image in IMAGES:
        text = (out / f"nsq_suite-0.1.0.dev0.{image}.image.cdx.json").read_text(encoding="utf-8")
        check_sbom(text)
        sbom = json.loads(text)
        ours = sbom["metadata"]["component"]
        assert (ours["type"], ours["name"], ours["version"]) == ("container", f"nsq-suite/{image}", "0.1.0.dev0")
        assert ours["hashes"] == [{"alg": "SHA-256", "content": "5" * 64}]
        assert {it["purl"] for it in sbom["components"]} == {
            "pkg:generic/python@3.11.7",
            "pkg:generic/tini@0.19.0",
            "pkg:pypi/trio@0.30.0",
            "pkg:deb/debian/libc6@2.36-9",
            "pkg:pypi/mypy@1",  # mypyc's runtime, in the compiled core
        }
        licences = (out / f"nsq_suite-0.1.0.dev0.{image}.image.licences.md").read_text(encoding="utf-8")
        assert "| trio | 0.30.0 | MIT OR Apache-2.0 | always |" in licences
        assert "| libc6 | 2.36-9 | /usr/share/doc/libc6/copyright in the image | always |" in licences
    sums = (out / "SHA256SUMS").read_text(encoding="utf-8")
    assert {line.split()[1] for line in sums.splitlines()} == {it.name for it in out.iterdir()} - {"SHA256SUMS"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tini": ""}, "tini in an image states no version: ''"),
        ({"metadata": IN_IMAGE["metadata"][:1]}, "its python3 does not find nsq-suite"),
    ],
)
def test_an_image_that_hides_what_is_in_it_is_refused(docker: Path, changed: Any, said: str) -> None:
    (docker.parent / "in-image").write_text(json.dumps({**IN_IMAGE, **changed}))
    with pytest.raises(Refused, match=re.escape(said)):
        packages_in("nsq-suite/nsqd:0.1.0.dev0")


def test_every_image_is_a_target() -> None:
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    shipped = re.findall(r"^FROM service AS (\S+)", dockerfile, re.MULTILINE)
    assert sorted(shipped) == sorted(IMAGES)
