from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from nsqadmin.parts.graphite import Graphite

GRAPHITE = Graphite(
    url="/nsq",
    statsd_prefix="nsq.%s",
    counter_format="stats.counters.%s.count",
    gauge_format="stats.gauges.%s",
    interval=60.0,
)


def targets(pictures: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {title: parse_qs(urlsplit(url).query)["target"][0] for title, url in pictures}


def test_pictures_are_below_the_base_path_when_they_are_handed_on() -> None:
    urls = [url for _, url in GRAPHITE.of_topic("t", "2h")]
    assert urls
    assert all(url.startswith("/nsq/render?") for url in urls)


def test_gauges_and_counters_have_nsqs_names() -> None:
    found = targets(GRAPHITE.of_channel("orders", "x#ephemeral", "2h"))
    assert found["Depth"] == (
        'summarize(sumSeries(stats.gauges.nsq.*.topic.orders.channel.xephemeral.depth),"60sec","avg")'
    )
    assert found["Requeued"].startswith("scale(summarize(sumSeries(stats.counters.nsq.*.topic.orders.")
    assert found["Requeued"].endswith('.requeue_count.count),"60sec","avg"),0.01666666667)')


def test_a_node_is_spelled_without_dots_and_a_prefix_with_a_dot_gets_no_second_one() -> None:
    graphite = Graphite(url="", statsd_prefix="nsq.%s.", counter_format="%s", gauge_format="", interval=10.0)
    assert (
        'summarize(nsq.127_0_0_1_4151.mem.heap_objects,"10sec","avg")'
        in targets(graphite.of_node("127.0.0.1:4151", "1h")).values()
    )


def test_switched_off_there_are_none() -> None:
    assert GRAPHITE.of_topic("t", "off") == ()
