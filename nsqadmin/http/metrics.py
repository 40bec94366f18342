"""The endpoints for monitoring: nsqadmin's own health, and the cluster's numbers for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.model import Channel, Severity, Topic
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, text_answer
from nsqadmin.jobs.run_book import percentile
from nsqcommon.certificate_files import certificate_metrics
from nsqcommon.prometheus import CONTENT_TYPE, Metric, Sample, counter, exposition, gauge
from nsqcommon.version import NSQ_VERSION, suite_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.requests import Request

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.diagnosis.incident import Open
    from nsqadmin.jobs.run_book import TaskRuns
    from nsqadmin.services import Services
    from nsqadmin.webhook.outbox import Outbox

    OfTopics = Sequence[tuple[Topic, Mapping[str, str]]]  # with their labels
    OfChannels = Sequence[tuple[Channel, Mapping[str, str]]]

_QUANTILES: Final = (0.5, 0.95)
_OF_TOPICS: Final = [(f"nsq_topic_{it.metric}", it.help, it.read) for it in measures_of(Topic) if it.metric]
_OF_CHANNELS: Final = [(f"nsq_channel_{it.metric}", it.help, it.read) for it in measures_of(Channel) if it.metric]
_MEASURED_OF_CHANNELS: Final[tuple[tuple[str, str, Callable[[Channel], float | None]], ...]] = (
    (
        "nsq_channel_oldest_age_seconds",
        "How long the oldest waiting message has waited; an estimate for nodes that do not report it.",
        lambda it: it.oldest_age,
    ),
    (
        "nsq_channel_drain_seconds",
        "Time until the channel is empty if its depth keeps changing at this rate; messages that a policy removes are not counted.",
        lambda it: it.drain_time,
    ),
    (
        "nsq_channel_net_rate",
        "Change of the depth per second over about a minute, on the nodes that answer.",
        lambda it: it.net_rate,
    ),
    (
        "nsq_channel_dropped_rate",
        "Messages per second that a policy drops because there are too many, over the last minute; without a sample if there are none.",
        lambda it: it.rates.dropped or None,
    ),
    (
        "nsq_channel_expired_rate",
        "Messages per second that a policy drops or buries because of their age, over the last minute; without a sample if there are none.",
        lambda it: it.rates.expired or None,
    ),
    (
        "nsq_channel_buried_rate",
        "Messages per second that are buried, over the last minute; without a sample if there are none.",
        lambda it: it.rates.buried or None,
    ),
)


def routes(services: Services) -> list[Route]:
    monitoring = _Monitoring(services)
    # Probes and Prometheus may use any host name or address, as configured. That is fine for /ping and /healthz, which
    # reveal nothing; /metrics names topics and channels, so pages of foreign hosts must not read it.
    return [
        Route("GET", "/ping", monitoring.ping, public=True, any_host=True),
        Route("GET", "/healthz", monitoring.healthz, logged=False, public=True, any_host=True),
        Route("GET", "/metrics", monitoring.metrics, logged=False, any_host=True),
    ]


class _Monitoring:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def ping(self, request: Request) -> Response:
        return text_answer("OK", v1=False)

    async def healthz(self, request: Request) -> Response:
        """Answer 200 once there is a snapshot to show."""
        if self._services.view.snapshot.index:
            return text_answer("OK", v1=False)
        return text_answer("nothing has been asked yet", status=503, v1=False)

    async def metrics(self, request: Request) -> Response:
        identity = identity_of(request)
        snapshot = self._services.view.snapshot
        topics = [topic for topic in snapshot.topics if identity.sees(topic.name)]
        hub, sampler = self._services.hub, self._services.sampler
        own = [
            gauge("nsqadmin_viewers", "Pages that get live updates.", len(hub)),
            gauge(
                "nsqadmin_busy_share",
                "Share of a core that the last sample took.",
                sampler.busy_share if sampler is not None else 0.0,
            ),
            incident_metric(self._services.incidents.seen_by(identity)),
            *(webhook_metrics(webhook.outboxes) if (webhook := self._services.webhook) is not None else ()),
            *certificate_metrics("nsqadmin", self._services.certificates),
        ]
        if (jobs := self._services.jobs) is not None:
            own += job_metrics(jobs.runs(identity), dropped=jobs.book.dropped)
        body = exposition(
            [*own, *cluster_metrics(snapshot), *topic_metrics(topics), *condition_metrics(snapshot, identity.sees)]
        )
        return Response(body, headers={"content-type": CONTENT_TYPE.decode()})


def cluster_metrics(snapshot: Snapshot) -> list[Metric]:
    severities = [finding.severity for finding in snapshot.findings]
    return [
        gauge(
            "nsqadmin_build_info",
            "Always 1; the labels name the version.",
            1,
            {"version": NSQ_VERSION, "release": suite_version()},
        ),
        counter("nsqadmin_samples_total", "Samples of the cluster since the start.", snapshot.index),
        gauge("nsqadmin_sample_timestamp_seconds", "When the last sample was taken.", snapshot.taken_at),
        gauge("nsqadmin_sample_interval_seconds", "Time until the next sample.", snapshot.interval),
        gauge("nsq_problems", "Findings that are problems.", severities.count(Severity.PROBLEM)),
        gauge("nsq_warnings", "Findings that are warnings.", severities.count(Severity.WARNING)),
        gauge("nsq_nodes_silent", "Nodes whose last known values are in the totals.", len(snapshot.silent)),
        _many(
            "nsq_node_silent_messages",
            "Waiting messages that a silent node had when it last answered; the totals include them.",
            [(silent.depth, {"node": silent.node}) for silent in snapshot.silent],
        ),
        _many(
            "nsq_node_up",
            "Whether the node answered in the last sample.",
            [
                *((node.is_reachable, {"node": node.address, "kind": "nsqd"}) for node in snapshot.nodes),
                *(
                    (lookupd.is_reachable, {"node": lookupd.address, "kind": "nsqlookupd"})
                    for lookupd in snapshot.lookupds
                ),
            ],
        ),
    ]


def job_metrics(runs: Iterable[TaskRuns], *, dropped: int) -> list[Metric]:
    """Return what workers report, by topic and task: at most as many as `RunBook` keeps."""
    known = [(it, {"topic": it.topic, "task": it.name}) for it in runs]
    ended = [
        Sample(float(count), {**at, "state": state})
        for it, at in known
        for state, count in (("succeeded", it.succeeded), ("failed", it.failed), ("retrying", it.retried))
    ]
    times = [
        Sample(value / 1000, {**at, "quantile": f"{share:g}"})
        for it, at in known
        for share in _QUANTILES
        if (value := percentile(it.times, share)) is not None
    ]
    return [
        counter("nsqadmin_job_reports_dropped_total", "Reports about jobs that workers could not send.", dropped),
        Metric(
            "nsq_job_runs_total", "counter", "Runs that workers have reported since nsqadmin listens.", tuple(ended)
        ),
        _many("nsq_job_running", "Jobs that run now, as workers report.", [(it.running, at) for it, at in known]),
        Metric("nsq_job_seconds", "gauge", "Run time of the last 512 runs that succeeded.", tuple(times)),
    ]


def incident_metric(incidents: Iterable[Open]) -> Metric:
    counts = Counter((it.incident.severity.value, it.state) for it in incidents)
    return _many(
        "nsqadmin_incidents",
        "Incidents: findings that have one cause.",
        [
            (counts[severity, state], {"severity": severity, "state": state})
            for severity in (Severity.PROBLEM.value, Severity.WARNING.value)
            for state in ("open", "acknowledged", "muted")
        ],
    )


def webhook_metrics(outboxes: Mapping[str, Outbox]) -> list[Metric]:
    return [
        Metric(
            "nsqadmin_incident_posts_total",
            "counter",
            "Posts about incidents: sent; failed, if they were given up; dropped, if too many waited.",
            tuple(
                Sample(float(count), {"receiver": name, "result": result})
                for name, box in outboxes.items()
                for result, count in (("sent", box.sent), ("failed", box.failed), ("dropped", box.dropped))
            ),
        ),
        _many(
            "nsqadmin_incident_posts_waiting",
            "Posts about incidents that wait for their receiver.",
            [(len(box), {"receiver": name}) for name, box in outboxes.items()],
        ),
    ]


def topic_metrics(topics: Sequence[Topic]) -> list[Metric]:
    """Return sums over all nodes. Unknown values get no sample."""
    of_topics = [(topic, {"topic": topic.name}) for topic in topics if not topic.is_inactive]
    of_channels = [
        (channel, {"topic": topic.name, "channel": channel.name}) for topic in topics for channel in topic.channels
    ]
    return [
        *_silent_nodes(of_topics, of_channels),
        *(_many(name, help, [(read(it), at) for it, at in of_topics]) for name, help, read in _OF_TOPICS),
        *(_many(name, help, [(read(it), at) for it, at in of_channels]) for name, help, read in _OF_CHANNELS),
        *_policy_messages(of_topics, of_channels),
        *(
            _many(name, help, [(known, at) for it, at in of_channels if (known := read(it)) is not None])
            for name, help, read in _MEASURED_OF_CHANNELS
        ),
    ]


def _silent_nodes(of_topics: OfTopics, of_channels: OfChannels) -> list[Metric]:
    return [
        _many(
            "nsq_topic_silent_nodes",
            "Nodes of the topic that do not answer: its totals include their last known values.",
            [(len(it.silent), at) for it, at in of_topics if it.silent],
        ),
        _many(
            "nsq_channel_silent_nodes",
            "Nodes of the channel that do not answer: its totals include their last known values.",
            [(len(it.silent), at) for it, at in of_channels if it.silent],
        ),
    ]


def _policy_messages(of_topics: OfTopics, of_channels: OfChannels) -> list[Metric]:
    return [
        _many(
            "nsq_topic_policy_messages",
            "Effects of policy rules on messages that no channel had, dry runs included, since the nodes started.",
            [(count, {**at, "cause": cause}) for it, at in of_topics for cause, count in it.policy_counts],
        ),
        _many(
            "nsq_channel_policy_messages",
            "Effects of policy rules on messages of the channel, dry runs included, since the nodes started.",
            [(count, {**at, "cause": cause}) for it, at in of_channels for cause, count in it.policy_counts],
        ),
    ]


def condition_metrics(snapshot: Snapshot, sees: Callable[[str], bool]) -> list[Metric]:
    """Return the findings of diagnosis, by rule."""
    visible = [finding for finding in snapshot.findings if finding.topic and sees(finding.topic)]
    of_channels = {(found.rule, found.topic, found.channel): found for found in visible if found.channel}
    of_topics = {(found.rule, found.topic): found for found in visible if not found.channel}
    return [
        _many(
            "nsq_channel_condition",
            "1 if diagnosis finds this about the channel.",
            [
                (1, {"rule": rule, "topic": topic, "channel": channel, "severity": found.severity.value})
                for (rule, topic, channel), found in of_channels.items()
            ],
        ),
        _many(
            "nsq_topic_condition",
            "1 if diagnosis finds this about the topic.",
            [
                (1, {"rule": rule, "topic": topic, "severity": found.severity.value})
                for (rule, topic), found in of_topics.items()
            ],
        ),
    ]


def _many(name: str, help: str, samples: Iterable[tuple[float, Mapping[str, str]]]) -> Metric:
    return Metric(name, "gauge", help, tuple(Sample(float(value), labels) for value, labels in samples))
