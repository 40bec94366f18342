"""`/metrics`: every family with its kind, and every figure where a parser finds it."""

from __future__ import annotations

import re

from tests.nsqd.http.conftest import Nsqd

_SAMPLE = re.compile(r'^([a-z_:]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)$')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(body: bytes) -> tuple[dict[str, str], dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """Return (kind of each family, value of each sample), read by Prometheus' own text parser."""
    kinds: dict[str, str] = {}
    samples = {}
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "a family comes once"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.match(line)
            assert match is not None, line
            assert match[1] in kinds, "its kind comes first"
            key = (match[1], tuple(_LABEL.findall(match[2] or "")))
            assert key not in samples, "a sample comes once"
            samples[key] = float(match[3])
    return kinds, samples


def test_every_family_and_its_kind(nsqd: Nsqd) -> None:
    answer = nsqd.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    kinds, _ = parsed(answer.body)
    assert kinds == {
        "nsqd_build_info": "gauge",
        "nsqd_healthy": "gauge",
        "nsqd_clock_jump_seconds": "gauge",
        "nsqd_disk_reads_refused_total": "counter",
        "nsqd_log_waiting_for_disk": "gauge",
        "nsqd_policy_file_valid": "gauge",
        "nsqd_policy_file_is_copy": "gauge",
        "nsqd_keys": "gauge",
        "nsqd_keys_dropped_early_total": "counter",
        "nsqd_log_requests_waiting": "gauge",
        "nsqd_start_time_seconds": "gauge",
        "nsqd_resident_memory_bytes": "gauge",
        "nsqd_producers": "gauge",
        "nsqd_topic_messages_total": "counter",
        "nsqd_topic_message_bytes_total": "counter",
        "nsqd_topic_repeats_total": "counter",
        "nsqd_topic_depth": "gauge",
        "nsqd_topic_backend_depth": "gauge",
        "nsqd_topic_paused": "gauge",
        "nsqd_topic_policy_total": "counter",
        "nsqd_channel_messages_total": "counter",
        "nsqd_channel_requeues_total": "counter",
        "nsqd_channel_timeouts_total": "counter",
        "nsqd_channel_burials_total": "counter",
        "nsqd_channel_kicks_total": "counter",
        "nsqd_channel_discards_total": "counter",
        "nsqd_channel_depth": "gauge",
        "nsqd_channel_backend_depth": "gauge",
        "nsqd_channel_in_flight": "gauge",
        "nsqd_channel_deferred": "gauge",
        "nsqd_channel_buried": "gauge",
        "nsqd_channel_clients": "gauge",
        "nsqd_channel_max_in_flight": "gauge",
        "nsqd_channel_in_flight_full_seconds": "gauge",
        "nsqd_channel_held": "gauge",
        "nsqd_channel_groups": "gauge",
        "nsqd_channel_held_full_seconds": "gauge",
        "nsqd_channel_paused": "gauge",
        "nsqd_channel_policy_total": "counter",
        "nsqd_channel_oldest_message_age_seconds": "gauge",
        "nsqd_channel_e2e_latency_seconds": "gauge",
        "nsqd_reader_behind": "gauge",
        "nsqd_reader_silent_seconds": "gauge",
    }


def test_figures_of_a_topic_and_its_channel(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/pub?topic=t", b"hello")
    _, samples = parsed(nsqd.get("/metrics").body)
    topic, channel = (("topic", "t"),), (("topic", "t"), ("channel", "c"))
    assert samples["nsqd_topic_messages_total", topic] == 1
    assert samples["nsqd_topic_message_bytes_total", topic] == 5
    assert samples["nsqd_channel_depth", channel] == 1
    assert samples["nsqd_channel_oldest_message_age_seconds", channel] >= 0
    assert samples["nsqd_healthy", ()] == 1


def test_a_channel_with_nothing_waiting_has_no_lag(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    _, samples = parsed(nsqd.get("/metrics").body)
    assert samples["nsqd_channel_oldest_message_age_seconds", (("topic", "t"), ("channel", "c"))] == 0


def test_health_follows_the_disk(nsqd: Nsqd) -> None:
    nsqd.store.health = "NOK - no space left on device"
    assert parsed(nsqd.get("/metrics").body)[1]["nsqd_healthy", ()] == 0
    assert nsqd.get("/healthz").status == 500
    assert nsqd.get("/readyz").status == 500
