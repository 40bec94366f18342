""".github/: linters find nothing, what workflows name exists, and nothing is published before everything has passed.

No workflow is run here. What can be is: steps that are nothing but shell, with files and commands that are not real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from scripts.releasing.images import IMAGES
from scripts.releasing.project import Project
from tests.support.late_grammars import late_grammars

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".github" / "workflows"
FILES: Final = sorted(FOLDER.glob("*.yml"))
TEXTS: Final = {it.stem: it.read_text(encoding="utf-8") for it in FILES}
WORKFLOWS: Final[dict[str, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
RELEASE: Final[dict[str, Any]] = WORKFLOWS["release"]["jobs"]
VERSIONS: Final = re.compile(r"for version in ([\d. ]+);")
IN_TREE: Final = re.compile(r"(?<![\w/.])(?:\.ci|deploy|scripts|tests)/[\w./-]+")
BIN: Final = Path(sys.executable).parent
LIMIT: Final = 60.0  # seconds


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow in WORKFLOWS.values():
        yield from workflow["jobs"].items()


def scripts() -> Iterator[str]:
    for _, job in jobs():
        yield from (it["run"] for it in job.get("steps", ()) if "run" in it)


def script(job: str, beginning: str) -> str:
    """Return the shell of the step with such a name in a job of the release."""
    (found,) = (it["run"] for it in RELEASE[job]["steps"] if it.get("name", "").startswith(beginning))
    text: str = found
    return text


def run(
    command: list[str | Path], *, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(environ or {})}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def run_step(text: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a step's shell as the runner does, in this folder."""
    if sys.platform != "linux":
        pytest.skip("steps are written for Linux: its bash and its sed")
    return run(["bash", "-e", "-c", text], cwd=folder, environ=environ)


# What linters say


@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", FILES), ("dependabot", [ROOT / ".github" / "dependabot.yml"])]
)
def test_files_fit_their_schema(schema: str, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with late_grammars():  # here, as each run that collects this file would pay for the import
        from check_jsonschema import main as check_jsonschema

    with pytest.raises(SystemExit) as ended:
        check_jsonschema([f"--builtin-schema=vendor.{schema}", *map(str, files)])
    assert ended.value.code == 0, capsys.readouterr().out


def test_zizmor_finds_nothing() -> None:
    done = run([BIN / "zizmor", "--offline", "--strict-collection", ROOT / ".github"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shell_of_steps_can_be_read() -> None:
    unreadable = [text for text in scripts() if run(["bash", "-n", "-c", text]).returncode]
    assert unreadable == []


# What they name


def test_what_they_name_is_in_the_tree() -> None:
    named = {it for text in scripts() for it in IN_TREE.findall(text)}
    assert {"scripts/test-quick", "scripts/release", "tests/e2e/test_wheels.py", ".ci/run", "deploy/helm/nsq"} <= named
    assert [it for it in named if not (ROOT / it).exists()] == []


def test_every_python_that_we_claim_is_tested_and_gets_a_wheel() -> None:
    claimed = [it.rpartition(" ")[2] for it in Project(ROOT).settings()["classifiers"] if ":: 3." in it]
    assert WORKFLOWS["ci"]["jobs"]["quick"]["strategy"]["matrix"]["python"] == claimed
    (installed,) = (
        it["with"]["python-version"] for it in RELEASE["packages"]["steps"] if "python-version" in it.get("with", {})
    )
    assert sorted(installed.split()) == claimed
    with_compiler, with_wheel = (it.split() for it in VERSIONS.findall(TEXTS["release"]))
    assert ["3.11", *with_compiler] == with_wheel == claimed  # .venv is of 3.11, and has the compiler already
    assert "PYTHON: python3.11\n" in TEXTS["release"]


def test_every_image_is_built_and_gets_its_tags() -> None:
    built, tagged = re.findall(r"for target in ([\w ]+);", TEXTS["release"])
    assert built.split() == tagged.split() == [*IMAGES]


def test_one_check_stands_for_all_that_is_required() -> None:
    ci = WORKFLOWS["ci"]["jobs"]
    assert {*ci["required"]["needs"]} == ci.keys() - {"required", "macos", "compose", "next-python"}


@pytest.mark.parametrize(
    ("results", "status"), [("success success", 0), ("success failure", 1), ("skipped success", 1), ("cancelled", 1)]
)
def test_what_is_required_has_to_succeed(results: str, status: int, tmp_path: Path) -> None:
    (step,) = WORKFLOWS["ci"]["jobs"]["required"]["steps"]
    assert run_step(step["run"], tmp_path, RESULTS=results).returncode == status


# What they may do, and when


def test_each_job_may_do_what_it_is_for() -> None:
    assert [it["permissions"] for it in WORKFLOWS.values()] == [{}] * len(WORKFLOWS)
    allowed = {
        name: {right for right, it in job.get("permissions", {}).items() if it == "write"} for name, job in jobs()
    }
    assert {name: rights for name, rights in allowed.items() if rights} == {
        "images": {"packages"},
        "pypi": {"id-token"},
        "tags": {"packages"},
        "chart": {"packages"},
        "github": {"contents"},
    }
    assert not re.search(r"\bsecrets\b", "".join(TEXTS.values()).replace("no secret", ""))


def test_no_job_may_take_for_ever() -> None:
    assert [name for name, job in jobs() if "uses" not in job and "timeout-minutes" not in job] == []


def test_nothing_is_published_without_a_tag_and_before_all_has_passed() -> None:
    assert RELEASE["pypi"]["if"] == "github.ref_type == 'tag'"
    assert {"tests", "dist", "images"} == {*RELEASE["pypi"]["needs"]}
    assert RELEASE["dist"]["needs"] == "packages"
    assert [RELEASE[it]["needs"] for it in ("tags", "chart", "github")] == ["pypi", "tags", "chart"]
    assert "push=$PUSH" in script("images", "Build")
    (push,) = (it["env"]["PUSH"] for it in RELEASE["images"]["steps"] if "PUSH" in it.get("env", {}))
    assert push == "${{ github.ref_type == 'tag' }}"


# What they do


def packages(machine: str) -> list[str]:
    """Return names such as those of `scripts/release` on such a machine."""
    plain = ["nsq_suite-1.0.tar.gz", "nsqclient-1.0.tar.gz"]
    wheels = [f"{it}-1.0-py3-none-any.whl" for it in ("nsq_suite", "nsqclient")]
    compiled = f"nsq_suite-1.0-cp311-cp311-manylinux_2_17_{machine}.manylinux2014_{machine}.whl"
    artefacts = [*plain, *wheels, compiled]
    return [*artefacts, *(f"{it}.cdx.json" for it in artefacts), "nsq_suite-1.0.notes.md", "SHA256SUMS"]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a folder with what the two machines have built. SBOMs differ: they have what is installed there."""
    for machine in ("x86_64", "aarch64"):
        folder = tmp_path / f"packages-{machine}"
        folder.mkdir()
        for name in packages(machine):
            (folder / name).write_text(name + (machine if name.endswith("cdx.json") else ""), encoding="utf-8")
    return tmp_path


def test_the_packages_of_both_machines_come_into_one_folder(built: Path) -> None:
    assert run_step(script("dist", "Both machines"), built).returncode == 0
    assert run_step(script("dist", "Add"), built, RUNNER_TEMP=str(built)).returncode == 0
    dist = built / "dist"
    assert {it.name for it in dist.iterdir()} == {*packages("x86_64"), *packages("aarch64")}
    assert (dist / "nsqclient-1.0-py3-none-any.whl.cdx.json").read_text(encoding="utf-8").endswith("x86_64")
    sums = [line.split()[1] for line in (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines()]
    assert {*sums} == {it.name for it in dist.iterdir()} - {"SHA256SUMS"}
    (check,) = (it for it in RELEASE["github"]["steps"] if "--check" in it.get("run", ""))
    assert run_step(check["run"], dist).returncode == 0


@pytest.mark.parametrize("name", ["nsqclient-1.0.tar.gz", "nsq_suite-1.0-py3-none-any.whl"])
def test_machines_that_differ_make_no_release(name: str, built: Path) -> None:
    (built / "packages-aarch64" / name).write_text("something else", encoding="utf-8")
    done = run_step(script("dist", "Both machines"), built)
    assert done.returncode == 1
    assert name in done.stdout


def test_each_distribution_is_published_and_nothing_else(tmp_path: Path) -> None:
    for name in {*packages("x86_64"), *packages("aarch64")}:
        (tmp_path / "dist" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dist" / name).write_text("", encoding="utf-8")
    published = {}
    for project in RELEASE["pypi"]["strategy"]["matrix"]["include"]:
        assert run_step(script("pypi", "Only"), tmp_path, FILES=project["files"]).returncode == 0
        published[project["project"]] = {it.name for it in (tmp_path / "upload").iterdir()}
        (tmp_path / "upload").rename(tmp_path / project["project"])
    assert [*published] == [
        "nsqclient",
        Project(ROOT).settings()["name"],
    ]  # in this order, as the latter needs the former
    assert published["nsqclient"] == {"nsqclient-1.0.tar.gz", "nsqclient-1.0-py3-none-any.whl"}
    artefacts = {it.name for it in (tmp_path / "dist").iterdir() if it.name.endswith((".whl", ".tar.gz"))}
    assert published["nsqclient"] | published["nsq-suite"] == artefacts
    assert published["nsqclient"] & published["nsq-suite"] == set()


@pytest.mark.parametrize(("version", "names"), [("0.2.0", ["0.2.0", "latest"]), ("0.2.0rc1", ["0.2.0rc1"])])
def test_an_image_has_one_name_for_both_platforms(version: str, names: list[str], tmp_path: Path) -> None:
    for architecture in ("amd64", "arm64"):
        (tmp_path / f"digests-{architecture}").mkdir()
        for image in IMAGES:
            (tmp_path / f"digests-{architecture}" / image).write_text(f"sha256:{architecture}\n", encoding="utf-8")
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    docker.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REPOSITORY_OWNER": "SomeBody", "TOKEN": "t"}
    done = run_step(script("tags", "Give"), tmp_path, GITHUB_REF_NAME=f"v{version}", GITHUB_ACTOR="a", **environ)
    assert done.returncode == 0, done
    image = "ghcr.io/somebody/nsq-suite/nsqd"
    tags = " ".join(f"--tag={image}:{it}" for it in names)
    assert f"buildx imagetools create {tags} {image}@sha256:amd64 {image}@sha256:arm64" in done.stdout.splitlines()
    assert done.stdout.count("imagetools create") == len(IMAGES)


def test_the_published_chart_names_the_published_images(tmp_path: Path) -> None:
    """The step replaces this line of the chart's values; the workflow asks Helm whether it has."""
    chart = tmp_path / "deploy" / "helm" / "nsq"
    chart.mkdir(parents=True)
    values = (ROOT / "deploy" / "helm" / "nsq" / "values.yaml").read_text(encoding="utf-8")
    (chart / "values.yaml").write_text(values, encoding="utf-8")
    (change,) = (line for line in script("chart", "Push").splitlines() if line.startswith("sed "))
    assert run_step(change, tmp_path, owner="ghcr.io/somebody").returncode == 0
    changed = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    assert changed["image"].pop("prefix") == "ghcr.io/somebody/"
    before = yaml.safe_load(values)
    del before["image"]["prefix"]
    assert changed == before
