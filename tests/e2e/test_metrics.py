"""docs/reference/metrics.md lists what the daemons export: names, kinds, labels and descriptions."""

from __future__ import annotations

import re
import ssl
from collections.abc import Container
from pathlib import Path

from tests.support.certificates import make_certificates
from tests.support.process import ROOT, Daemon, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

PAGE = ROOT / "docs" / "reference" / "metrics.md"


def documented(program: str) -> dict[str, tuple[str, set[str], str]]:
    (section,) = re.findall(
        rf"^## {program}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    found, shared = dict[str, tuple[str, set[str], str]](), set[str]()
    for line in section.splitlines():
        if title := re.match(r"\| Metric(.*?) \| Kind \| Meaning \|$", line):
            shared = labels_in(title[1])
        elif row := re.match(r"\| `(\w+)`(.*?) \| (\w+) \| (.*) \|$", line):
            name, more, kind, text = row.groups()
            found[name] = kind, shared | labels_in(more), text
    return found


def labels_in(text: str) -> set[str]:
    """Return the labels of "Metric of each `topic`", or of "by `cause`"."""
    return set(re.findall(r"`(\w+)`", text))


def exported(
    daemon: Daemon, *, sometimes: Container[str] = (), tls: ssl.SSLContext | None = None
) -> dict[str, tuple[str, set[str], str]]:
    """Return what the daemon exports. `sometimes` are metrics that have samples only in some states."""
    text = daemon.http("GET", "/metrics", tls=tls).body.decode()
    found = {}
    for name, words, kind in re.findall(r"# HELP (\w+) (.*)\n# TYPE \w+ (\w+)\n", text):
        suffix = "_sum" if kind == "histogram" else ""
        samples = re.findall(rf"^{name}{suffix}(\{{.*\}})? ", text, re.MULTILINE)
        assert samples or name in sometimes, f"{name} has no sample here, so its labels were not seen"
        labels = set(re.findall(r'(\w+)="', "".join(samples))) if samples else documented(daemon.program)[name][1]
        found[name] = kind, labels, words
    return found


def tls_options(folder: Path) -> tuple[str, str]:
    made = make_certificates(folder)
    return f"tls-cert={made.certificate}", f"tls-key={made.key}"


def test_nsqd_exports_what_the_page_says(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[policy]]\ntopic = "full"\nmax_messages = 1\n[[policy]]\nchannel = "c"\nmax_attempts = 1\ndry_run = true\n'
        '[[policy]]\norder = "group"\nmax_in_flight = 1\n'
    )
    (tmp_path / "shared").mkdir()
    options = ("e2e-processing-latency-percentile=0.99", f"policy-file={policy}", f"remote=file://{tmp_path}/shared")
    with Nsqd(tmp_path / "data", *options, *tls_options(tmp_path)) as nsqd:
        nsqd.post("/pub?topic=t", b"body")
        client = nsqd.connect()
        client.subscribe("t", "c", ready=1)
        client.requeue(client.message())
        client.finish(client.message())
        client.in_step()
        nsqd.post("/pub?topic=full", b"body")
        assert nsqd.http("POST", "/pub?topic=full", b"body").status == 429
        log = nsqd.http("GET", "/topic/log?topic=t").json["log"]
        nsqd.post("/topic/reader?topic=t", b'{"name":"land","log":"%s","sequence":0}' % log.encode())
        assert exported(nsqd) == documented("nsqd")


def test_nsqlookupd_exports_what_the_page_says(tmp_path: Path) -> None:
    with Nsqlookupd(*tls_options(tmp_path)) as nsqlookupd:
        nsqlookupd.https_address = nsqlookupd.http_address
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        assert exported(nsqlookupd, tls=context) == documented("nsqlookupd")


def test_nsqadmin_exports_what_the_page_says(tmp_path: Path) -> None:
    needs_module("starlette")
    sometimes = {
        "nsq_channel_oldest_age_seconds",
        "nsq_channel_drain_seconds",
        "nsq_channel_condition",
        "nsq_topic_condition",
        "nsq_node_silent_messages",
        "nsq_topic_silent_nodes",
        "nsq_channel_silent_nodes",
        "nsq_job_runs_total",
        "nsq_job_running",
        "nsq_job_seconds",
        *(f"nsq_channel_{it}_rate" for it in ("net", "dropped", "expired", "buried")),
        "nsq_topic_policy_messages",
        "nsq_channel_policy_messages",
    }
    with Nsqd(tmp_path) as nsqd:
        nsqd.post("/pub?topic=t", b"body")
        nsqd.post("/channel/create?topic=t&channel=c")
        node = f"nsqd-http-address={nsqd.http_address[0]}:{nsqd.http_address[1]}"
        with Nsqadmin(
            node, "incident-webhook=http://127.0.0.1:9/", "https-address=127.0.0.1:0", *tls_options(tmp_path)
        ) as nsqadmin:
            eventually(lambda: nsqadmin.http("GET", "/healthz").status == 200)
            assert exported(nsqadmin, sometimes=sometimes) == documented("nsqadmin")


def test_what_the_page_about_job_queues_names_is_exported(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Job queues\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"nsqd_\w+", section))
    with Nsqd(tmp_path / "data", "e2e-processing-latency-percentile=0.99") as nsqd:
        nsqd.post("/topic/create?topic=mails")
        nsqd.post("/channel/create?topic=mails&channel=jobs")
        nsqd.connect().publish("mails", b"later", b"now")
        client = nsqd.connect()
        client.subscribe("mails", "jobs", ready=1)
        client.finish(client.message())
        text = nsqd.http("GET", "/metrics").body.decode()
    assert len(named) > 8
    for name in named:
        assert re.search(rf"^{name}\{{.*channel=\"jobs\"", text, re.MULTILINE), name
