"""The files in deploy/ for Spark: manifests fit the schema, options exist, an executor starts as in Kubernetes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.kubernetes import check_object
from tests.support.nsqpipe_page import flags_of
from tests.support.process import ROOT

FOLDER: Final = ROOT / "deploy" / "spark"
OBJECTS: Final[list[dict[str, Any]]] = list(
    yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
)
ENTRYPOINT: Final = ROOT / "deploy" / "docker" / "nsq-spark"
POD: Final = {  # the environment that Spark gives an executor's pod
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod-3",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in range(11)},
}


@pytest.mark.parametrize("found", OBJECTS, ids=[it["kind"] for it in OBJECTS])
def test_manifests_fit_the_schema(found: dict[str, Any]) -> None:
    check_object(found, "1.33")


def test_the_pod_is_told_options_that_exist() -> None:
    (deployment,) = (it for it in OBJECTS if it["kind"] == "Deployment")
    verb, *arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert verb == "submit"
    border = arguments.index("--")
    for name, words in (("submit", arguments[:border]), (arguments[border + 1], arguments[border + 2 :])):
        known = flags_of(name)
        assert [word for word in words if word.partition("=")[0] not in known] == []


def run(folder: Path, *words: str, **environ: str) -> list[str]:
    """Run the entrypoint with programs that print how they were called, one word a line."""
    for name in ("java", "nsqpipe"):
        program = folder / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$(basename "$0")" "$@"\n')
        program.chmod(0o755)
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SPARK_HOME": "/spark", **environ}
    done = subprocess.run([ENTRYPOINT, *words], env=environ, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


def test_an_executor_is_started_as_its_pod_says(tmp_path: Path) -> None:
    program, *said = run(tmp_path, "executor", **POD)
    assert program == "java"
    assert said[:11] == [f"-Dn={number}" for number in range(11)], "in their order"
    assert said[11:14] == ["-Xms512m", "-Xmx512m", "-cp"]
    assert said[14].endswith("/spark/jars/*")
    flags = dict(zip(said[16::2], said[17::2], strict=True))
    assert flags == {
        "--driver-url": POD["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "pod-3",
    }


def test_everything_else_is_nsqpipe(tmp_path: Path) -> None:
    assert run(tmp_path, "land", "--topic=a b") == ["nsqpipe", "land", "--topic=a b"]
