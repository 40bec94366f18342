"""nsqadmin's pages with two nsqd and two nsqlookupd under load: live numbers, keys, dialogs, every action."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from tests.browser.conftest import address_of, shot, until
from tests.support.browser import LIMIT, Browser
from tests.support.cluster import Cluster
from tests.support.process import Nsqadmin

LIVE_PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders?tab=producers",
    "/topics/orders/billing",
    "/topics/orders/billing?tab=consumers",
    "/consumers?group=none",
    "/nodes",
    "/lookup",
    "/activity",
    "/counter",
]


@pytest.fixture
def topic(cluster: Cluster, admin: Nsqadmin, page: Browser, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a topic on both nodes, with a channel c; three messages on the first node, one on the second."""
    name = request.node.name.partition("[")[0][-60:]
    for node in cluster.nodes:
        node.post(f"/topic/create?topic={name}")
        node.post(f"/channel/create?topic={name}&channel=c")
    for number, node in enumerate((*cluster.nodes, cluster.nodes[0], cluster.nodes[0])):
        node.post(f"/pub?topic={name}", b'{"number":%d}' % number)
    cluster.wait_for(name)
    knows(admin, name, depth=4)
    yield name
    page.leave()  # a page about a topic that is being deleted would ask for it again
    cluster.delete_topic(name)


def knows(admin: Nsqadmin, topic: str, *, depth: int) -> None:
    """Wait until nsqadmin knows so many messages of c on both nodes. A sample does without a node that takes a second."""

    def is_known() -> bool:
        admin.http("GET", f"/topics/{topic}/c?fresh=1")
        answer = admin.json("GET", f"/api/v2/topics/{topic}/c")
        return answer.status == 200 and (len(answer.json["nodes"]), answer.json["depth"]) == (2, depth)

    until(is_known, "nsqadmin knows the topic")


# Numbers that move


@pytest.mark.parametrize("path", LIVE_PAGES)
def test_a_page_of_a_live_cluster_is_whole(page: Browser, path: str) -> None:
    page.open(path)
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    assert page.count("main h1") == 1
    shot(page, f"live{path.replace('/', '-').replace('?', '-')}")


def test_numbers_and_charts_move_by_themselves(page: Browser) -> None:
    page.open("/topics/orders/billing")
    cell = "document.querySelector('[data-k=\"topics/orders/billing@' + arguments[0] + '/message_count\"]')"
    key = "[data-k^='topics/orders/billing@'][data-k$='/message_count']"
    before = page.text(key)
    page.wait("document.querySelector(arguments[0]).textContent !== arguments[1]", key, before)
    end = "JSON.parse(document.querySelector('[data-chart]').dataset.chart).end"
    assert page.run(f"return {end}") > 0
    assert cell
    page.wait("/As of (just now|[0-9.]+ s ago)/.test(document.querySelector('#asof').textContent)")


def test_a_total_and_a_tab_are_of_the_same_sample_as_the_rows(page: Browser, cluster: Cluster, topic: str) -> None:
    """Nothing is in flight or deferred at first, so those tabs begin without a number."""
    page.open(f"/topics/{topic}/c")
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    page.run(
        "window.fetch = () => new Promise(() => {}); window.off = new Set();"  # the page is not fetched again
        "const number = (it) => Number(it.textContent.replace(/\\D/g, ''));"
        "const sum = (end) => [...document.querySelectorAll(`tbody [data-k$='/${end}']`)].reduce((all, it) => all + number(it), 0);"
        "window.shown = () => ['depth', 'message_count', 'deferred'].map((end) =>"
        " [sum(end), number(document.querySelector(`tfoot [data-k$='/${end}']`))].join());"
        "window.tabs = () => [...document.querySelectorAll('.tabs .count')].map((it) => it.textContent).join()"
    )
    assert page.run("return shown()") == ["4,4", "4,4", "0,0"]
    assert page.run("return tabs()") == "0,2,0"
    cluster.nodes[0].post(f"/pub?topic={topic}", b"one more")
    cluster.nodes[1].post(f"/pub?topic={topic}&defer=600000", b"later")
    page.wait("shown().join(' ') === '5,5 6,6 1,1'")
    with cluster.nodes[0].connect() as consumer:
        consumer.subscribe(topic, "c", ready=2)
        consumer.message()
        page.wait("tabs() === '1,2,2'")


def test_numbers_stand_still_while_paused_and_go_on_afterwards(page: Browser) -> None:
    page.open("/counter")
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    page.press("p")
    page.wait_for_text("Paused", "#live")
    before = page.text(".odometer")
    page.run("return new Promise((done) => setTimeout(done, 2500))")
    assert page.text(".odometer") == before
    page.press("p")
    page.wait("document.querySelector('.odometer').innerText !== arguments[0]", before)


def test_where_no_stream_is_to_be_had_the_page_asks_again(page: Browser) -> None:
    page.command("Network.enable", {})
    page.command("Network.setBlockedURLs", {"urls": ["*/events*"]})
    try:
        page.open("/counter")
        before = page.text(".odometer")
        page.wait("document.querySelector('.odometer').innerText !== arguments[0]", before)
    finally:
        page.command("Network.setBlockedURLs", {"urls": []})
    page.complaints()  # drops the complaint about the blocked stream


def test_one_viewer_too_many_sees_numbers_that_move_all_the_same(page: Browser, admin: Nsqadmin) -> None:
    def nobody_looks() -> bool:
        return b"nsqadmin_viewers 0\n" in admin.http("GET", "/metrics").body

    until(nobody_looks, "the page before has been left")
    with ExitStack() as viewers:
        for _ in range(200):
            viewer = viewers.enter_context(socket.create_connection(admin.http_address, timeout=LIMIT))
            viewer.sendall(b"GET /events?scope=overview HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert viewer.recv(12) == b"HTTP/1.1 200"
        page.open("/counter")
        before = page.text(".odometer")
        page.wait("document.querySelector('.odometer').innerText !== arguments[0]", before)
        assert page.run("return document.querySelector('#live').dataset.state") == "on"
        assert all("503" in it for it in page.complaints())
    page.open("/help")
    until(nobody_looks, "the viewers have left")


def test_a_page_that_nobody_sees_asks_for_nothing(page: Browser) -> None:
    page.open("/counter")
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    hide = (
        "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    page.run(hide, True)
    before = page.text(".odometer")
    page.run("return new Promise((done) => setTimeout(done, 2500))")
    assert page.text(".odometer") == before
    page.run(hide, False)
    page.wait("document.querySelector('.odometer').innerText !== arguments[0]", before)


def test_what_one_holds_stays_where_it_is_while_numbers_move(page: Browser, cluster: Cluster, admin: Nsqadmin) -> None:
    page.open("/topics")
    page.run("document.querySelector('tr.channel a').focus(); window.held = document.activeElement")
    key = "[data-k='topics/clicks/incoming'], [data-k='topics/orders/billing/depth'], [data-k='topics/clicks/total_depth']"
    before = page.run("return [...document.querySelectorAll(arguments[0])].map((it) => it.textContent).join()", key)
    page.wait(
        "[...document.querySelectorAll(arguments[0])].map((it) => it.textContent).join() !== arguments[1]", key, before
    )
    cluster.nodes[0].post("/topic/create?topic=aaa.first")  # sorted by name it would be the first row
    try:
        # A page gets new rows when all nodes are asked, which does without a node that takes a second.
        until(lambda: b"aaa.first" in admin.http("GET", "/topics?fresh=1").body, "nsqadmin knows the topic")
        page.run(HEAR)
        page.press("r")
        page.wait("window.heard.includes('All nodes were asked')")
        assert page.run("return window.held.isConnected && document.activeElement === window.held")
        page.run("document.activeElement.blur()")
        page.wait("(document.querySelector('tr.topic').innerText.includes('aaa.first'))")
    finally:
        for daemon in (*cluster.nodes, *cluster.lookupds):
            daemon.http("POST", "/topic/delete?topic=aaa.first")


def test_only_what_changes_for_the_worse_or_better_is_announced(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open("/")
    page.wait("document.querySelector('#live').dataset.state === 'on'")
    page.run(HEAR)
    cluster.nodes[0].post(f"/channel/create?topic={topic}&channel=alone")
    cluster.nodes[0].post(f"/pub?topic={topic}", b"nobody reads it")
    page.wait("window.heard.some((it) => /problem|warning/.test(it))")
    page.wait_for_text(f"{topic}/", "[data-live='attention']")
    assert page.count("[aria-live], [role=status]:not(.hush)") == 0


# Navigation


# Has window.heard list all announcements: the next one may come within milliseconds.
HEAR = (
    "window.heard = []; new MutationObserver((list) => {"
    " for (const it of list) window.heard.push(...[...it.addedNodes].map((node) => node.textContent)); })"
    ".observe(document.querySelector('#announce'), {childList: true})"
)


def test_it_is_not_said_that_nodes_were_asked_while_nsqadmin_does_not_answer(page: Browser) -> None:
    page.open("/")
    page.run(HEAR)
    page.run("window.fetch = () => Promise.reject(new TypeError('refused'))")
    page.press("r")
    page.wait("window.heard.includes('nsqadmin does not answer')")
    assert "All nodes were asked" not in page.run("return window.heard")


def test_nodes_are_asked_at_once_also_when_the_page_is_being_fetched_anyway(page: Browser) -> None:
    page.open("/")
    page.run(HEAR)
    page.run(
        "const real = window.fetch; window.asked = []; window.fetch = (url) => { window.asked.push(String(url));"
        " return new Promise((answer) => { window.answer = () => answer(real(url)); }); }"
    )
    page.wait("window.asked.length === 1")  # the page by itself
    page.press("r")
    assert "All nodes were asked" not in page.run("return window.heard")
    page.run("window.answer()")
    page.wait("window.asked[1]?.includes('fresh=1')")
    page.run("window.answer()")
    page.wait("window.heard.includes('All nodes were asked')")


def test_everything_is_reached_with_the_keyboard(page: Browser) -> None:
    page.open("/")
    page.press("g", "t")
    page.wait("location.pathname === '/topics'")
    page.press("/")
    page.wait("document.activeElement.id === 'filter'")
    page.press("orders", "enter")
    page.wait("location.search.includes('filter=orders')")
    page.press("j", "j")
    page.wait("document.activeElement.textContent === 'billing'")
    page.press("enter")
    page.wait("location.pathname === '/topics/orders/billing'")
    page.press("?")
    page.wait_for_text("Keys", "#dialog")
    page.press("escape")
    page.wait("!document.querySelector('#dialog').open")


@pytest.mark.parametrize("path", ["/", "/topics/orders?tab=messages"])  # the second has an element #found of its own
def test_the_palette_jumps_to_a_channel(page: Browser, path: str) -> None:
    page.open(path)
    page.press("ctrl", "k")
    page.wait("document.querySelectorAll('#palette li').length > 5")
    page.press("fraud")
    page.wait("document.querySelector('#palette li')?.innerText.startsWith('orders/fraud')")
    shot(page, "palette")
    page.press("enter")
    page.wait("location.pathname === '/topics/orders/fraud'")


def test_the_overview_says_what_is_wrong_and_where(page: Browser, cluster: Cluster) -> None:
    page.open("/")
    page.wait_for_text("orders/fraud", "[data-live='attention']")
    page.wait_for_text("payments/ledger", "[data-live='attention']")
    page.wait_for_text("archive", "[data-live='attention']")
    page.open("/topics/orders/fraud")
    page.wait_for_text("consumer", "[data-live='findings']")


def test_the_list_of_topics_filters_sorts_and_folds(page: Browser) -> None:
    page.open("/topics")
    page.fill("#filter", "consumers=0 fraud")
    page.click(".filter button")
    page.wait("location.search.includes('filter=')")
    assert "billing" not in page.text("main table")
    page.open("/topics")
    page.click_text("Depth", "thead a")
    page.wait("location.search === '?sort=-depth'")
    page.wait("document.querySelectorAll('th[aria-sort=descending]').length === 1")
    page.wait("document.readyState === 'complete'")
    page.run("document.querySelector('.fold').click()")
    assert page.run("return document.querySelector('.fold').getAttribute('aria-expanded')") == "false"
    assert (
        page.run("return document.querySelector('.fold').closest('tbody').querySelector('tr.channel').hidden") is True
    )


# Actions


def press_and_confirm(page: Browser, label: str, *, typed: str = "") -> str:
    """Press a button of the page, confirm in the dialog, and return the receipt."""
    page.click_text(label, "main .actions a, main td a, main .buttons a")
    page.wait("document.querySelector('#dialog').open")
    assert page.run("return document.activeElement.id") == "dialog-title"  # Enter alone does nothing
    if typed:
        page.fill("#dialog #typed", typed)
    page.click("#dialog form button:not([type=button])")
    page.wait("document.querySelector('#dialog [data-receipt]')")
    return page.text("#dialog")


def press(page: Browser, label: str, within: str = "main .actions button, main td button") -> str:
    """Press a button that acts at once, and return what the toast says of it."""
    page.run("document.querySelector('.toast')?.setAttribute('data-old', '')")
    page.click_text(label, within)
    page.wait("document.querySelector('.toast:not([data-old])')?.textContent.includes('done on')")
    return page.text(".toast")


def test_what_lands_where_is_shown_moves_and_is_forgotten(page: Browser, cluster: Cluster, topic: str) -> None:
    def report(number: int, sequence: int) -> None:
        node = cluster.nodes[number]
        history = f"/topic/log?topic={topic}"
        # A new topic shows its messages when nsqd has asked nsqlookupd for its channels.
        until(lambda: node.http("GET", history).json["next"] == (3, 1)[number], "the topic flows")
        log = node.http("GET", history).json["log"]
        body = {"name": "nsqpipe land", "into": "s3://lake/t", "format": "delta", "host": "etl-1"}
        node.post(f"/topic/reader?topic={topic}", json.dumps({**body, "log": log, "sequence": sequence}).encode())

    report(0, 1)
    report(1, 0)
    page.open(f"/topics/{topic}?fresh=1")
    page.wait_for_text("nsqpipe land", "[data-live='readers']")
    text = page.text("[data-live='readers']")
    assert all(word in text for word in ("s3://lake/t", "delta", "etl-1"))
    behind = "[data-live='readers'] tr.topic [data-label='Behind']"
    page.wait("document.querySelector(arguments[0]).innerText === '3'", behind)  # two on one node, one on the other
    shot(page, "lands-in")
    report(0, 3)
    page.wait_for_text("1", behind)
    page.click_text("Forget", "[data-live='readers'] a")
    page.wait_for_text("its next report brings it back", "#dialog")
    page.click("#dialog form button")
    page.wait("document.querySelector('#dialog [data-receipt=ok]')")
    for node in cluster.nodes:
        assert node.http("GET", f"/topic/log?topic={topic}&readers=true").json["readers"] == []
    page.open(f"/topics/{topic}?fresh=1")
    page.wait_for_text("No program has reported that it reads", "[data-live='readers']")


def test_a_channel_is_paused_and_unpaused_on_all_nodes(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}/c")
    assert "done on 2 of 2 nodes" in press(page, "Pause")
    assert all(node.channel(topic)["paused"] for node in cluster.nodes)
    page.wait_for_text("Paused ", "[data-live='paused-by'] a")
    assert "Paused" not in page.text("[data-live='state']"), "it is said once"
    shot(page, "paused-by")
    press(page, "Unpause")
    assert not any(node.channel(topic)["paused"] for node in cluster.nodes)
    press(page, "Undo", ".toast button")
    assert all(node.channel(topic)["paused"] for node in cluster.nodes)
    press(page, "Undo", ".toast button")
    assert not any(node.channel(topic)["paused"] for node in cluster.nodes)


def test_a_channel_that_is_partly_paused_can_be_finished_both_ways(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}/c?tab=nodes")
    assert "done on 1 of 1 node" in press(page, "Pause here")
    assert sum(node.channel(topic)["paused"] for node in cluster.nodes) == 1
    page.open(f"/topics/{topic}/c?fresh=1")
    page.wait_for_text("Partly paused", "[data-live='state']")
    assert "Pause the rest" in page.text("[data-live='actions']")
    press(page, "Unpause")
    assert not any(node.channel(topic)["paused"] for node in cluster.nodes)


def test_emptying_says_first_what_is_lost(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}/c?fresh=1")
    page.click_text("Empty", "main .actions a")
    page.wait_for_text("4 messages on 2 nodes", "#dialog h1")
    shot(page, "dialog-empty")
    page.press("enter")  # the focus is on the title
    assert page.run("return document.querySelector('#dialog').open")
    page.press("escape")
    page.wait("!document.querySelector('#dialog').open")
    assert sum(node.channel(topic)["depth"] for node in cluster.nodes) == 4
    press_and_confirm(page, "Empty")
    shot(page, "dialog-receipt")
    assert sum(node.channel(topic)["depth"] for node in cluster.nodes) == 0


def test_an_empty_is_undone_from_its_receipt_and_from_activity(page: Browser, cluster: Cluster, topic: str) -> None:
    def depth() -> int:
        return sum(node.channel(topic)["depth"] for node in cluster.nodes)

    page.open(f"/topics/{topic}/c?fresh=1")
    receipt = press_and_confirm(page, "Empty")
    assert "Undo is possible for as long as the nodes keep the messages." in receipt
    assert depth() == 0
    page.click_text("Undo", "#dialog button")
    page.wait_for_text("4 messages are back.", "#dialog [data-receipt=ok]")
    shot(page, "dialog-undone")
    assert depth() == 4
    page.open(f"/topics/{topic}/c?fresh=1")
    press_and_confirm(page, "Empty")
    assert depth() == 0
    page.open(f"/activity?filter={topic}")
    shot(page, "activity-undo")
    assert page.count("main form[action$='/actions/undo']") == 1
    page.click_text("Undo", "main td button")
    page.wait_for_text("4 messages are back.", "#dialog [data-receipt=ok]")
    assert depth() == 4
    page.open(f"/activity?filter={topic}")
    assert page.count("main form[action$='/actions/undo']") == 0


def test_much_is_only_deleted_when_its_name_is_typed(
    page: Browser, cluster: Cluster, admin: Nsqadmin, topic: str
) -> None:
    cluster.nodes[0].post(f"/mpub?topic={topic}", b"\n".join(b"%d" % it for it in range(1200)))
    knows(admin, topic, depth=1204)
    page.open(f"/topics/{topic}/c?fresh=1")
    page.click_text("Delete", "main .actions a")
    page.wait("document.querySelector('#dialog #typed')")
    assert page.run("return document.querySelector('#dialog .final').disabled") is True
    page.fill("#dialog #typed", "c")
    page.click("#dialog .final")
    page.wait("document.querySelector('#dialog [data-receipt=ok]')")
    page.click_text("Close", "#dialog a")
    page.wait("location.pathname === arguments[0]", f"/topics/{topic}")
    assert all(node.topic(topic)["channels"] == [] for node in cluster.nodes)


def test_a_topic_is_paused_emptied_and_deleted(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}")
    press(page, "Pause")
    assert all(node.topic(topic)["paused"] for node in cluster.nodes)
    page.open(f"/topics/{topic}?fresh=1")
    press(page, "Unpause")
    page.open(f"/topics/{topic}?fresh=1")
    press_and_confirm(page, "Empty")
    page.open(f"/topics/{topic}?fresh=1")
    receipt = press_and_confirm(page, "Delete")
    assert receipt.count("✓ done") == 4
    page.requests()
    page.click_text("Close", "#dialog a")
    page.wait("location.pathname === '/topics'")
    assert not [it for it in page.requests() if f"/topics/{topic}" in it], "the page of what is gone is asked for again"
    assert not any(node.http("GET", f"/stats?format=json&topic={topic}").json["topics"] for node in cluster.nodes)


def test_a_topic_is_removed_from_one_node(page: Browser, cluster: Cluster, topic: str) -> None:
    page.open(f"/topics/{topic}?tab=nodes")
    assert not page.run("return document.querySelector('details.menu a').checkVisibility()")
    page.run("document.querySelector('details.menu summary').focus()")
    page.press("enter")
    receipt = press_and_confirm(page, "Remove topic from node")
    assert "✓ done" in receipt
    left = [len(node.http("GET", f"/stats?format=json&topic={topic}").json["topics"] or ()) for node in cluster.nodes]
    assert sorted(left) == [0, 1]


def test_a_topic_and_a_channel_are_created_on_chosen_nodes(page: Browser, cluster: Cluster) -> None:
    name = "made.here"
    page.open("/lookup")
    page.fill("#create-topic", name)
    page.fill("#create-channel", "first")
    page.click("#create ~ form button.primary, section[aria-labelledby=create] button.primary")
    page.wait("document.querySelector('[data-receipt=ok]')")
    assert all(node.channel(name, "first")["depth"] == 0 for node in cluster.nodes)
    page.open(f"/topics/{name}/first?fresh=1")
    assert page.text("h1") == "first"
    for each in (*cluster.nodes, *cluster.lookupds):
        each.http("POST", f"/topic/delete?topic={name}")


def test_creation_is_one_dialog_that_can_be_left(page: Browser, cluster: Cluster) -> None:
    page.open("/topics")
    page.click_text("Create", "main .actions a")
    page.wait("document.querySelector('#dialog #new-topic')")
    page.click_text("Cancel", "#dialog a")
    page.wait("!document.querySelector('#dialog').open")
    page.click_text("Create", "main .actions a")
    page.wait("document.querySelector('#dialog #new-topic')")
    page.fill("#dialog #new-topic", "made.once")
    page.click_text("Choose nodes", "#dialog summary")
    page.click("#dialog .choices input")
    assert page.run("return document.querySelector('#dialog input[name=on]:checked').value") == "some"
    page.click("#dialog button.primary")
    page.wait("document.querySelector('#dialog [data-receipt=ok]')")
    having = [bool(node.http("GET", "/stats?format=json&topic=made.once").json["topics"]) for node in cluster.nodes]
    assert sorted(having) == [False, True]
    for each in (*cluster.nodes, *cluster.lookupds):
        each.http("POST", "/topic/delete?topic=made.once")


def test_a_bad_name_is_refused_with_the_reason(page: Browser) -> None:
    page.open("/actions/create?topic=" + quote("a b"))
    assert "letters, digits" in page.text("#sheet [role=alert]")
    assert all("400" in it for it in page.complaints())


def test_inactive_names_are_chosen_and_deleted_together(page: Browser, cluster: Cluster) -> None:
    for name in ("left-over-1", "left-over-2"):
        cluster.lookupds[1].post(f"/topic/create?topic={name}")
    page.open("/lookup?fresh=1")
    page.wait_for_text("left-over-2", "[data-live='inactive']")
    page.run("document.querySelectorAll('[name=pick][value^=left-over]').forEach((it) => it.click())")
    page.click_text("Delete selected", "button")
    page.wait_for_text("Delete 2 topics", "#dialog h1")
    page.click("#sheet .final")
    page.wait("document.querySelector('[data-receipt]')")
    assert set(cluster.lookupds[1].get("/topics")["topics"]).isdisjoint({"left-over-1", "left-over-2"})


def test_what_was_done_is_in_the_activity(page: Browser, topic: str) -> None:
    page.open(f"/topics/{topic}/c")
    press(page, "Pause")
    page.open(f"/activity?filter={topic}")
    page.wait_for_text(f"{topic}/c", "main table")
    assert "ok" in page.text("main table")


def test_actions_work_without_scripts(page: Browser, cluster: Cluster, topic: str) -> None:
    page.allow_scripts(False)
    page.open(f"/topics/{topic}/c")
    page.click("form[action*='/pause_channel'] button")
    page.wait_for_text("Pause channel", "h1")
    assert page.text("#sheet").count("✓ done") == 2
    assert all(node.channel(topic)["paused"] for node in cluster.nodes)
    page.click("a[data-done]")
    page.wait("document.querySelector('h1').innerText === 'c'")


def test_a_post_from_elsewhere_does_nothing(page: Browser, admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    body = f"topic={topic}&channel=c".encode()
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = admin.http("POST", "/actions/pause_channel", body, headers=headers)
        assert answer.status == 403
    assert admin.http("GET", f"/actions/pause_channel?topic={topic}&channel=c").status == 200
    assert not any(node.channel(topic)["paused"] for node in cluster.nodes)
    assert address_of(cluster)
