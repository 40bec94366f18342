"""The files in deploy/: units, manifests, alerts, dashboard and sample configurations, checked with their own tools."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nsqadmin.options import Options as AdminOptions
from nsqcommon.options import table_of
from nsqd.options import Options as NsqdOptions
from nsqlookupd.options import Options as LookupOptions
from tests.support.kubernetes import InvalidObject, check_object
from tests.support.nsqpipe_page import flags_of

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
MANIFESTS: Final = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROMETHEUS: Final = DEPLOY / "prometheus"
OPTIONS: Final = {"nsqd": NsqdOptions, "nsqlookupd": LookupOptions, "nsqadmin": AdminOptions}
# The oldest version that was maintained when this was written, and later ones.
KUBERNETES: Final = ("1.31", "1.33")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


# Compose. tests/e2e/test_compose.py tests with an engine, if there is one, that it works


def document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return document


def services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = document()["services"]
    return services


def nodes() -> dict[str, dict[str, Any]]:
    """Return the nodes of the cluster that everybody gets."""
    return {name: it for name, it in all_nodes().items() if "profiles" not in it}


def all_nodes() -> dict[str, dict[str, Any]]:
    return {name: it for name, it in services().items() if it["image"] == "nsq-suite/nsqd"}


@pytest.mark.parametrize("name", services())
def test_services_can_write_to_their_volumes_only_and_are_looked_after(name: str) -> None:
    service = services()[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert {"restart", "stop_grace_period"} <= service.keys()
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), "logs that grow without a bound"


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/deploy.md"])
def test_a_page_that_starts_profiles_of_compose_stops_them(page: str) -> None:
    """`down` leaves containers of profiles that are not named, and then fails to remove the network."""
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"docker compose ((?:--profile \w+ )*)(up|down)", text)
    profiles = {it: {name for said, verb in commands if verb == it for name in said.split()} for it in ("up", "down")}
    assert profiles["up"]
    assert profiles["down"] >= profiles["up"]


def test_ports_are_the_same_inside_and_published() -> None:
    """Then a port from discovery is right inside and outside."""
    assert len(nodes()) == 3
    for name, node in nodes().items():
        command = " ".join(node["command"])
        listened = re.findall(r"--(?:tcp|http)-address=0\.0\.0\.0:(\d+)", command)
        assert node["ports"] == [f"${{NSQ_PUBLISH:-127.0.0.1}}:{port}:{port}" for port in listened]
        address = node["networks"]["default"]["ipv4_address"]
        assert f"--broadcast-address=${{NSQ_HOST:-{address}}}" in command, "which the host reaches without a name"
        assert node["hostname"] == name
        assert f":{listened[1]}/" in node["healthcheck"]["test"][-1]


def test_addresses_of_nodes_are_in_the_network_and_differ() -> None:
    (pool,) = document()["networks"]["default"]["ipam"]["config"]
    network = ipaddress.ip_network(pool["subnet"])
    addresses = [ipaddress.ip_address(it["networks"]["default"]["ipv4_address"]) for it in all_nodes().values()]
    assert all(address in network for address in addresses)
    assert len({*addresses}) == len(addresses) == 7


def test_nodes_with_a_copy_share_a_store_and_no_disk() -> None:
    remote = {name: it for name, it in all_nodes().items() if it.get("profiles") == ["remote"]}
    names = {}
    for name, node in remote.items():
        assert node["volumes"] == ["/data", "store:/store"]
        assert node["environment"]["NSQD_REMOTE"] == "file:///store"
        broadcast, names[name], *more = node["command"]
        assert broadcast == f"--broadcast-address={node['networks']['default']['ipv4_address']}"
        assert more == (["--standby"] if name == "a2" else [])
    assert names == {it: f"--remote-name={it[0]}" for it in ("a", "a2", "b", "c")}


@pytest.mark.parametrize(
    "name", [name for name, it in services().items() if it.get("profiles") not in (["demo"], ["load"])]
)
def test_services_are_given_options_that_exist(name: str) -> None:
    service = services()[name]
    program = service["build"]["target"]
    if program == "pipeline":
        verb, *arguments = service["command"]
        flags = {it.removeprefix("--") for it in flags_of(verb)}
    else:
        arguments = service["command"]
        flags = {it.flag for it in table_of(OPTIONS[program])}
    named = {it.removeprefix("--").partition("=")[0] for it in arguments}
    assert named <= flags


def test_images_are_built_from_targets_that_exist() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    targets = re.findall(r"^FROM service AS (\S+)$", dockerfile, re.MULTILINE)
    for service in services().values():
        assert service["build"]["target"] in targets
        assert service["image"] == f"nsq-suite/{service['build']['target']}"
    assert "USER root" not in dockerfile.rpartition("USER nsq")[2]


def test_all_packages_are_in_the_context_of_the_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = [
        it.parent.name for it in ROOT.glob("*/__init__.py") if any(fnmatch(it.parent.name, p) for p in patterns)
    ]
    assert {"nsqd", "pyspark_nsq", "pyspark_nsqtable"} <= set(packages)
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"]
    assert [name for name in packages if not any(fnmatch(name, pattern) for pattern in let_in)] == []


def test_what_images_copy_from_the_repository_is_in_the_context_of_the_build() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        source
        for arguments in re.findall(r"^COPY (?!--from=)(.+)$", dockerfile, re.MULTILINE)
        for source in arguments.split()[:-1]
    } - {"."}
    assert {"pyproject.toml", "deploy/docker/nsq-health", "deploy/docker/nsq-spark"} <= copied
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    assert copied - let_in == set()
    assert [name for name in copied if not (ROOT / name).is_file()] == []


def test_images_say_what_they_are() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    shipped = dict(re.findall(r"^FROM service AS (\S+)$(.*?)(?=^FROM |\Z)", dockerfile, re.DOTALL | re.MULTILINE))
    assert {"nsqd", "pipeline"} <= shipped.keys()
    for name, stage in shipped.items():
        assert (
            f'LABEL org.opencontainers.image.title="nsq-suite/{name}" org.opencontainers.image.description="' in stage
        )


# Kubernetes


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for found in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if found["kind"] != "Kustomization":
                yield f"{path.name}: {found['kind']} {found['metadata']['name']}", found


OBJECTS: Final = dict(objects())


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {it["metadata"]["name"]: it for it in OBJECTS.values() if it["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    return {
        name: it["spec"]["template"] for kind in ("Deployment", "StatefulSet") for name, it in of_kind(kind).items()
    }


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", OBJECTS)
def test_manifests_fit_the_schema(name: str, version: str) -> None:
    check_object(OBJECTS[name], version)


def test_the_schema_check_can_fail() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": []}}
    with pytest.raises(InvalidObject):
        check_object(wrong, KUBERNETES[0])


def test_kustomization_names_every_manifest() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))
    assert set(kustomization["resources"]) == {it.name for it in MANIFESTS} - {"kustomization.yaml"}
    images = {container["image"] for pod in pods().values() for container in pod["spec"]["containers"]}
    assert {it["name"] for it in kustomization["images"]} == images


def test_selectors_of_services_find_pods_and_ports() -> None:
    assert of_kind("Service")
    for service in of_kind("Service").values():
        chosen = service["spec"]["selector"].items()
        found = [pod for pod in pods().values() if chosen <= pod["metadata"]["labels"].items()]
        assert len(found) == 1, service
        names = {port["name"] for container in found[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


@pytest.mark.parametrize("name", pods())
def test_pods_have_probes_and_nothing_to_write_to_but_their_volumes(name: str) -> None:
    pod = pods()[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"livenessProbe", "readinessProbe", "resources"} <= container.keys()


@pytest.mark.parametrize("name", pods())
def test_arguments_are_options(name: str) -> None:
    flags = {it.flag for it in table_of(OPTIONS[name])}
    for argument in pods()[name]["spec"]["containers"][0].get("args", ()):
        assert argument.removeprefix("--").partition("=")[0] in flags


def test_a_full_disk_restarts_no_nsqd() -> None:
    """A restart would not make room, and would disconnect the consumers, who do make room."""
    (container,) = pods()["nsqd"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert "httpGet" not in container[probe]


def test_a_stopped_nsqd_has_time_to_drain() -> None:
    """The drain's deadline ends before the hook's sleep, and that before the grace period."""
    spec = pods()["nsqd"]["spec"]
    (container,) = spec["containers"]
    deadline = next(int(it[len("--drain-deadline=") : -1]) for it in container["args"] if "drain-deadline" in it)
    *_, hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook.startswith("kill -USR1 1 && sleep ")
    assert deadline < int(hook.rpartition(" ")[2]) < spec["terminationGracePeriodSeconds"]


# systemd


@pytest.mark.needs("systemd-analyze")
def test_units_pass_systemd(tmp_path: Path) -> None:
    units = []
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        assert unit.stem in OPTIONS
        # systemd-analyze checks that the program exists, which is elsewhere in this test.
        text = unit.read_text(encoding="utf-8").replace(f"/opt/nsq/bin/{unit.stem} ", f"{sys.executable} ")
        assert f"--config=/etc/nsq/{unit.stem}.toml" in text
        units.append(tmp_path / unit.name)
        units[-1].write_text(text, encoding="utf-8")
    assert len(units) == 3
    said = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units)
    assert not [line for line in said.splitlines() if "nsq" in line]


@pytest.mark.needs("systemd-analyze")
def test_the_check_of_units_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "nsq-wrong.service"
    wrong.write_text(f"[Service]\nExecStart={sys.executable}\nStopTimeoutSec=1\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="StopTimeoutSec"):
        run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", wrong)


# Sample configurations


@pytest.mark.parametrize("name", OPTIONS)
def test_samples_set_what_there_is(name: str) -> None:
    """Commented lines of samples have to be valid, too."""
    text = (DEPLOY / "config" / f"{name}.toml").read_text(encoding="utf-8")
    everything = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    keys = {it.key for it in table_of(OPTIONS[name])}
    assert tomllib.loads(everything).keys() <= keys
    assert len(tomllib.loads(everything)) > len(tomllib.loads(text))


# Prometheus


@pytest.mark.needs("promtool")
def test_prometheus_takes_the_configuration() -> None:
    run("promtool", "check", "config", "prometheus.yml", cwd=PROMETHEUS)
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", "nsq.rules.yml", cwd=PROMETHEUS)


@pytest.mark.needs("promtool")
def test_alerts_come_when_they_should() -> None:
    run("promtool", "test", "rules", "nsq.rules.test.yml", cwd=PROMETHEUS)


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "nsq.rules.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    assert [name for name in alerts() if f"`{name}`" not in page] == []


# Grafana


def panels() -> dict[str, dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "nsq.json").read_text(encoding="utf-8"))
    return {it["title"]: it for it in dashboard["panels"] if it["type"] != "row"}


def expressions() -> list[str]:
    return [target["expr"] for panel in panels().values() for target in panel["targets"]]


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels().values():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.needs("promtool")
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    """Expressions are checked as rules, which is the only way without a server."""
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "1m", text)}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    run("promtool", "check", "rules", file)


@pytest.mark.parametrize("where", ["alerts", "dashboard"])
def test_named_metrics_are_in_the_reference(where: str) -> None:
    """tests/e2e/test_metrics.py checks that the reference is what daemons export."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))
    texts = {
        "alerts": [rule["expr"] for rule in alerts().values()],
        "dashboard": expressions(),
    }[where]
    named = {name for text in texts for name in re.findall(r"\b(?:nsqd|nsqlookupd)_[a-z0-9_]+\b", text)}
    assert named
    assert named <= known
