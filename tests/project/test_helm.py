"""deploy/helm/nsq, rendered by Helm's own engine: the same objects as deploy/kubernetes, and what values do to them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nsqcommon.options import table_of
from scripts.releasing.project import Project, as_semantic
from tests.project.test_deploy import KUBERNETES, OPTIONS
from tests.project.test_deploy import OBJECTS as PLAIN
from tests.support.kubernetes import check_object

pytestmark = pytest.mark.needs("helm_python")  # a library for some platforms only

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "nsq"
VERSION: Final[str] = Project(ROOT).settings()["version"]
VALUES: Final[Mapping[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
OTHERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "defaults": {},
    "without nsqadmin": {"nsqadmin": {"enabled": False}},
    "remote": {"nsqd": {"remote": {"url": "s3://lake/nsq"}, "persistence": False}},
    "everything": {
        "image": {"prefix": "registry.example/team/", "tag": "1.2.3", "pullSecrets": ["registry"]},
        **{
            name: {
                "extraArgs": ["--log-level=debug"],
                "secret": "own",
                "podAnnotations": {"a": "b"},
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "nsq", "operator": "Exists", "effect": "NoSchedule"}],
            }
            for name in OPTIONS
        },
    },
}


def engine() -> Any:
    import helm_python  # later: it starts threads, and the process that collects tests forks (collected_once.py)

    return helm_python


def render(values: Mapping[str, Any] | None = None, *, name: str = "nsq", namespace: str = "nsq") -> list[Any]:
    with engine().Chart.load(CHART) as chart:
        files: dict[str, str] = chart.render(dict(values or {}), name=name, namespace=namespace)
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def pods(objects: list[Any]) -> dict[str, Any]:
    kinds = ("Deployment", "StatefulSet")
    return {it["metadata"]["name"]: it["spec"]["template"]["spec"] for it in objects if it["kind"] in kinds}


def test_helm_finds_nothing_wrong() -> None:
    found = engine().chart.lint(CHART, strict=True)
    assert found["errors"] == []
    assert [it["error"] for it in found["messages"]] == ["icon is recommended"]


def test_by_default_the_objects_are_those_of_kustomize() -> None:
    rendered = {(it["kind"], it["metadata"]["name"].removeprefix("nsq-")): as_in_kustomize(it) for it in render()}
    plain = {(it["kind"], it["metadata"]["name"]): as_in_kustomize(it) for it in PLAIN.values()}
    del plain["Namespace", "nsq"]
    assert rendered == plain


def as_in_kustomize(found: Any) -> Any:
    """Return an object of release `nsq` without what only a chart has: the release in names and labels, tags of images."""
    if isinstance(found, dict):
        own = {"app.kubernetes.io/instance", "imagePullPolicy"}
        kept = {name: as_in_kustomize(it) for name, it in found.items() if name not in own}
        if "kind" in kept and "metadata" in kept:
            kept["metadata"].pop("labels", None)
        return kept
    if isinstance(found, list):
        return [as_in_kustomize(it) for it in found]
    if not isinstance(found, str):
        return found
    return re.sub(r"\bnsq-(?=nsq)", "", found).removesuffix(f":{VERSION}")


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_objects_fit_the_schema(values: Mapping[str, Any], version: str) -> None:
    objects = render(values)
    assert objects
    for found in objects:
        check_object(found, version)


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_flags_are_options(values: Mapping[str, Any]) -> None:
    for name, spec in pods(render(values)).items():
        flags = {it.flag for it in table_of(OPTIONS[name.removeprefix("nsq-")])}
        (container,) = spec["containers"]
        assert {it.removeprefix("--").partition("=")[0] for it in container["args"]} <= flags


def test_values_reach_the_pods() -> None:
    for name, spec in pods(render(OTHERS["everything"])).items():
        (container,) = spec["containers"]
        assert container["image"] == f"registry.example/team/nsq-suite/{name.removeprefix('nsq-')}:1.2.3"
        assert container["args"][-1] == "--log-level=debug"
        assert {"name": "secret", "mountPath": "/etc/nsq", "readOnly": True} in container["volumeMounts"]
        assert spec["volumes"] == [{"name": "secret", "secret": {"secretName": "own"}}]
        assert (spec["imagePullSecrets"], spec["nodeSelector"]) == ([{"name": "registry"}], {"disk": "fast"})
        assert spec["tolerations"][0]["key"] == "nsq"


def test_a_stopped_nsqd_has_time_to_drain() -> None:
    """The drain's deadline ends before the hook's sleep, and that before the grace period."""
    spec = pods(render({"nsqd": {"drainSeconds": 3600}}))["nsq-nsqd"]
    (container,) = spec["containers"]
    assert "--drain-deadline=3600s" in container["args"]
    *_, hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert 3600 < int(hook.rpartition(" ")[2]) < spec["terminationGracePeriodSeconds"]


def test_a_volume_may_have_a_class() -> None:
    storage = {"size": "1Ti", "className": "local"}
    (found,) = [it for it in render({"nsqd": {"storage": storage}}) if it["kind"] == "StatefulSet"]
    (claim,) = found["spec"]["volumeClaimTemplates"]
    assert (claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]["storage"]) == ("local", "1Ti")


REMOTE: Final = {"url": "s3://lake/nsq", "name": "shop", "secret": "keys"}


def stateful_set(values: Mapping[str, Any]) -> Any:
    (found,) = [it for it in render({"nsqd": values}) if it["kind"] == "StatefulSet"]
    return found["spec"]


def test_a_node_with_a_copy_needs_no_volume_and_no_drain() -> None:
    spec = stateful_set({"remote": REMOTE, "persistence": False})
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "data", "emptyDir": {}} in pod["volumes"]
    assert "--remote=s3://lake/nsq" in container["args"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "lifecycle" not in container


def test_a_node_and_its_standby_have_one_name() -> None:
    """Pods 0 and 2 are shop-0, pods 1 and 3 shop-1: the command is run as the pods run it."""
    spec = stateful_set({"remote": {**REMOTE, "standby": True}, "replicas": 2})
    (container,) = spec["template"]["spec"]["containers"]
    tini, separator, shell, flag, line, zero = container["command"]
    assert (tini, separator, spec["replicas"]) == ("tini", "--", 4)
    names = []
    for pod in range(4):
        done = subprocess.run(
            [shell, flag, line.replace("exec nsqd", "echo"), zero, "--standby"],
            env={"POD_NAME": f"nsq-nsqd-{pod}", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        names.append(done.stdout.strip())
    assert names == [f"--remote-name=shop-{number} --standby" for number in (0, 1, 0, 1)]


def test_standbys_that_are_never_ready_block_neither_updates_nor_evictions() -> None:
    values = {"nsqd": {"remote": {**REMOTE, "standby": True}, "replicas": 3}}
    objects = {(it["kind"], it["metadata"]["name"]): it["spec"] for it in render(values) if "spec" in it}
    budget = objects["PodDisruptionBudget", "nsq-nsqd"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (2, "AlwaysAllow")
    nsqd = objects["StatefulSet", "nsq-nsqd"]
    assert nsqd["updateStrategy"] == {"type": "OnDelete"}
    (container,) = nsqd["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "http"}, "a standby accepts no clients"


def test_flags_of_a_standby_are_options() -> None:
    test_flags_are_options({"nsqd": {"remote": {**REMOTE, "standby": True}}})


def test_names_are_short_enough_and_fit_each_other() -> None:
    """Helm lets a release's name have 53 characters; Services have 63, and a StatefulSet some less."""
    objects = render(name="a" * 53, namespace="elsewhere")
    assert all(len(it["metadata"]["name"]) <= 57 for it in objects)
    services = {it["metadata"]["name"]: it["spec"] for it in objects if it["kind"] == "Service"}
    arguments = [arg for spec in pods(objects).values() for arg in spec["containers"][0]["args"]]
    named = {name for arg in arguments for name in services if re.search(rf"[=.]{name}[:.]", arg)}
    assert len(named) == 4  # nsqd's own, two of nsqlookupd, nsqadmin's
    for spec in services.values():
        labels = [it["spec"]["template"]["metadata"]["labels"] for it in objects if "template" in it["spec"]]
        assert len([it for it in labels if spec["selector"].items() <= it.items()]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"nsqd": {"replica": 3}},
        {"nsqd": {"replicas": 0}},
        {"nsqd": {"retentionTime": "a day"}},
        {"nsqd": {"extraArgs": ["ack=synced"]}},
        {"nsqd": {"storage": {"size": "20 GB"}}},
        {"nsqd": {"persistence": False}},
        {"nsqd": {"remote": {"standby": True}}},
        {"nsqd": {"remote": {"url": "file:///store"}}},
        {"nsqlookup": {}},
        {"image": {"prefix": "registry.example"}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(engine().HelmValuesError):
        render(wrong)


def leaves(values: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        deeper = isinstance(value, dict) and name in ("image", "remote", "storage", *OPTIONS)
        yield from leaves(value, *path, name) if deeper else [(".".join((*path, name)), value)]


def test_the_readme_has_every_value_and_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", (CHART / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [name for name, _ in leaves(VALUES)]
    for (name, shown), (_, value) in zip(rows, leaves(VALUES), strict=True):
        assert shown == "see `values.yaml`" or yaml.safe_load(shown.strip("`")) == value, name


def test_the_version_is_that_of_the_suite() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (as_semantic(VERSION), VERSION)


def test_the_example_for_keda_asks_a_service_of_the_chart() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(it) for it in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (scaled,) = [it for it in blocks if it["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    host, _, port = trigger["metadata"]["nsqLookupdHTTPAddresses"].partition(":")
    (service,) = [it for it in render() if f"{it['metadata']['name']}.nsq.svc" == host and it["kind"] == "Service"]
    assert [it["port"] for it in service["spec"]["ports"]] == [int(port)]
