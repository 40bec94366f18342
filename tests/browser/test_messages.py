"""Messages on the pages: peeking, searching, tailing, publishing, replaying, moving a channel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import HTML, address_of, shot, until
from tests.browser.test_pages import serious_violations
from tests.nsqadmin.whole.test_search import publish_orders
from tests.support.browser import Browser
from tests.support.cluster import Cluster
from tests.support.process import Nsqadmin, Nsqd


@pytest.fixture
def topic(cluster: Cluster, admin: Nsqadmin, page: Browser, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a topic on the first node, with a channel c and five messages: JSON, JSON with HTML, text, bytes."""
    name: str = request.node.name.partition("[")[0][-60:]
    node = cluster.nodes[0]
    node.post(f"/topic/create?topic={name}")
    node.post(f"/channel/create?topic={name}&channel=c")
    for body in (
        b'{"country":"DE","amount":5}',
        HTML,
        "grün und ☃".encode(),
        b"\x00\xff\x10",
        b'{"country":"FR","amount":150}',
    ):
        node.post(f"/pub?topic={name}", body)
    cluster.wait_for(name, 1)
    until(lambda: b"c</" in admin.http("GET", f"/topics/{name}/c?fresh=1").body, "nsqadmin knows the topic")
    until(lambda: node.http("GET", f"/topic/log?topic={name}").json["next"] == 5, "they are synced")
    yield name
    page.leave()  # a page about a topic that is being deleted would ask for it again
    cluster.delete_topic(name)


IS_SLOW = "document.querySelector('main').innerText.includes('not fully searched: it has sent nothing')"


def search(page: Browser, path: str) -> None:
    """Open a page that searches, on a busy machine again: it gives a node 1.5 s, and says so if that was too little."""
    page.open(path)
    while page.run(f"return {IS_SLOW}"):
        page.open(path)


def depth(node: Nsqd, topic: str) -> int:
    found: int = node.channel(topic)["depth"]
    return found


def test_looking_at_messages_takes_nothing(page: Browser, cluster: Cluster, topic: str) -> None:
    for path in (f"/topics/{topic}?tab=messages&from=earliest", f"/topics/{topic}/c?tab=messages"):
        page.open(path)
        assert page.count("#messages tbody tr") == 5
    shot(page, "messages-peek")
    channel = cluster.nodes[0].channel(topic)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (5, 0, 0)


def test_html_in_a_message_is_text(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    for form in ("automatic", "JSON", "text"):
        if form == "automatic":
            open_row(page, 3)
        else:
            page.click_text(form, "#detail .filters a")
        page.wait("document.querySelector('#detail [aria-current]')?.textContent === arguments[0]", form)
        assert "<img src=x onerror=alert(1)>" in page.text("#detail pre")
        assert page.count("main img, main pre script") == 0
        assert page.title != "1"
    shot(page, "messages")


def open_row(page: Browser, number: int) -> None:
    """Open the details of a row, counted from 0 at the top."""
    page.run("document.querySelectorAll('#messages tbody a[data-detail]')[arguments[0]].click()", number)


def test_the_newest_is_first_and_bodies_are_shown_as_what_they_are(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages&columns=country")
    rows = page.run("return [...document.querySelectorAll('#messages tbody tr')].map((it) => it.innerText)")
    assert "FR" in rows[0]
    assert "binary 3 B · 00 ff 10" in rows[1]
    assert "grün und ☃" in rows[2]
    open_row(page, 1)
    page.wait_for_text("00000000  00 ff 10", "#detail pre")
    open_row(page, 0)
    page.wait_for_text('"country": "FR"', "#detail pre")
    page.press("escape")
    assert page.run("return document.querySelector('#detail').hidden")


def test_rows_are_opened_and_selected_with_the_keyboard(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    page.press("j", "j", "x")
    page.wait_for_text("Replay 1 to channel", "#selected")
    page.press("enter")
    page.wait_for_text("00 ff 10", "#detail pre")


def test_the_address_names_the_open_message_through_a_reload_and_back(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages&filter=country")
    page.wait("document.querySelectorAll('#messages tbody tr').length === 2")
    page.click("#messages tbody tr:nth-child(1) td.preview")  # anywhere in the row
    page.wait_for_text('"country": "FR"', "#detail pre")
    page.click("#messages tbody tr:nth-child(2) td.preview")
    page.wait_for_text('"country": "DE"', "#detail pre")
    assert "open=0%40" in page.path
    page.open(page.path)  # as a colleague would
    assert '"country": "DE"' in page.text("#detail pre")
    assert page.counts("tr.shown", "h1", "#detail .copy") == [1, 1, 1]
    page.run("history.back()")
    page.wait_for_text('"country": "FR"', "#detail pre")
    page.click("#detail > .close")
    page.wait("document.querySelector('#detail').hidden")
    assert "open=" not in page.path
    page.run("history.back()")
    page.wait_for_text('"country": "FR"', "#detail pre")
    page.click_text("Replay to channel", "#detail button")
    page.wait_for_text("Replay 1 message", "#dialog h1")
    assert (
        page.run(
            "const ids = [...document.querySelectorAll('[id]')].map((it) => it.id); return ids.length - new Set(ids).size"
        )
        == 0
    )


def test_the_header_box_selects_what_is_shown_and_what_is_selected_can_be_copied(page: Browser, topic: str) -> None:
    page.command("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    search(page, f"/topics/{topic}?tab=messages&filter=country")
    page.wait("document.querySelectorAll('#messages tbody tr').length === 2")
    header = "const it = document.querySelector('thead [data-pick-all]'); return [it.checked, it.indeterminate, it.ariaLabel]"
    page.click("#messages tbody [name=pick]")
    assert page.run(header) == [False, True, "Select all messages that are shown"]
    page.click("thead [data-pick-all]")
    assert page.run(header)[:2] == [True, False]
    assert "2 selected" in page.text("[data-picked]")
    page.run("window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); }")
    page.click_text("Copy as NDJSON", "[data-picked] button")
    page.wait("copied.length === 1")
    page.click_text("Copy selected links", "[data-picked] button")
    page.click_text("Copy link to search", "form.bar button")
    lines, links, here = page.run("return copied")
    assert '\\"amount\\":150' in lines.splitlines()[0] + lines.splitlines()[1]
    assert [link.startswith(f"{page.base}/message?topic={topic}&node=") for link in links.splitlines()] == [True, True]
    assert here == f"{page.base}/topics/{topic}?tab=messages&filter=country"
    page.click_text("Clear", "[data-picked] button")
    assert page.count("[name=pick]:checked") == 0
    assert page.run("return document.querySelector('#replay-selected').title") == "Select messages first"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_and_details_are_a_dialog(page: Browser, topic: str, theme: str) -> None:
    page.look(width=390, height=844, scheme=theme)
    search(page, f"/topics/{topic}?tab=messages")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    open_row(page, 0)
    page.wait_for_text('"country": "FR"', "#dialog pre")
    shot(page, f"messages-phone-{theme}")


def test_messages_are_searched(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    page.fill("#filter", "country = FR and amount >= 100")
    page.press("enter")
    is_found = "document.querySelector('#found')?.innerText.includes('1 match in all. Searched all 5 messages')"
    while page.wait(f"({IS_SLOW}) ? 'slow' : ({is_found})") == "slow":
        page.open(page.path)
    assert page.text("#messages mark") == "FR"
    page.click_text("Oldest", ".filters a")
    page.wait_for_text("1 match in all.", "#found")
    assert page.run("return document.querySelector('#filter').value") == "country = FR and amount >= 100"
    search(page, f"/topics/{topic}?tab=messages&filter=a+%3D+b+or")
    assert "not understood" in page.text("#search-wrong")


def test_messages_are_read_from_a_sequence(page: Browser, cluster: Cluster, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages&from=3&node={address_of(cluster)}")
    assert page.count("#messages tbody tr") == 2


def test_new_messages_are_tailed_into_the_same_table(page: Browser, cluster: Cluster, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    page.click("#tail")
    until(lambda: len(cluster.nodes[0].topic(topic)["channels"]) == 2, "the tail has subscribed")
    cluster.nodes[0].post(f"/pub?topic={topic}", b'{"fresh":"<b>yes</b>"}')
    page.wait_for_text('{"fresh":"<b>yes</b>"}', "#messages tbody tr:first-child")
    assert page.count("#messages b") == 0
    assert page.count("#messages tbody tr") == 6
    page.click("#messages tbody tr.new button")
    page.wait_for_text("<b>yes</b>", "#detail pre")
    page.click("#tail")
    page.wait_for_text("Tail stopped", "#tail-state")
    until(lambda: len(cluster.nodes[0].topic(topic)["channels"]) == 1, "the temporary channel is gone")
    assert depth(cluster.nodes[0], topic) == 6


def test_a_topic_without_a_channel_is_not_tailed(page: Browser) -> None:
    page.open("/topics/archive?tab=messages")
    assert page.count("#tail") == 0
    page.wait_for_text("Tail", "button[disabled]")


def test_messages_are_published_by_hand(page: Browser, cluster: Cluster, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    page.click_text("Publish", "main a")
    page.wait("document.querySelector('#dialog #body')")
    page.run("document.querySelector('#body').value = arguments[0]", "one\ntwo\n\nthree")
    page.run("document.querySelector('[name=lines]').click()")
    page.run("document.querySelector('#publish-node').value = arguments[0]", address_of(cluster))
    page.click("#dialog button.primary")
    page.wait_for_text("3 messages", "#dialog [data-receipt=ok]")
    assert depth(cluster.nodes[0], topic) == 8


def test_a_range_is_published_again_to_another_topic(page: Browser, cluster: Cluster, topic: str) -> None:
    target = f"{topic[:50]}.again"
    search(page, f"/topics/{topic}?tab=messages")
    page.click_text("Replay a range", "main a")
    page.fill("#dialog #first", "1")
    page.fill("#dialog #end", "4")
    page.fill("#dialog #target", target)
    page.click("#dialog button.primary")
    page.wait_for_text("Replay 3 messages", "#dialog h1")
    shot(page, "dialog-replay")
    page.click("#dialog button.primary")
    page.wait_for_text("3 messages", "#dialog [data-receipt=ok]")
    assert cluster.nodes[0].topic(target)["message_count"] == 3
    for daemon in (*cluster.nodes, *cluster.lookupds):
        daemon.http("POST", f"/topic/delete?topic={target}")


def test_selected_messages_are_replayed_to_one_channel(page: Browser, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/channel/create?topic={topic}&channel=other")
    for channel in ("c", "other"):
        cluster.nodes[0].post(f"/channel/empty?topic={topic}&channel={channel}")
    page.open(f"/topics/{topic}/c?tab=messages")
    page.click_text("Search its history", "main a")
    page.wait("document.querySelectorAll('[name=pick]').length === 5")
    page.run("[...document.querySelectorAll('[name=pick]')].slice(0, 2).forEach((it) => it.click())")
    page.click_text("Replay 2 to channel", "#replay-selected")
    page.wait_for_text("Replay 2 messages", "#dialog h1")
    assert page.run("return document.querySelector('#dialog [name=to]:checked').value") == "channel:c"
    shot(page, "dialog-redeliver")
    page.click("#dialog button.primary")
    page.wait_for_text("2 messages queued for redelivery to c", "#dialog [data-receipt=ok]")
    assert depth(cluster.nodes[0], topic) == 2
    assert cluster.nodes[0].channel(topic, "other")["depth"] == 0
    page.click_text("Messages of c", "#dialog a")
    page.wait_for_text("2 messages, the next one first", "#found")


def test_a_channel_is_moved_back(page: Browser, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/channel/empty?topic={topic}&channel=c")
    page.open(f"/topics/{topic}/c?fresh=1")
    page.click_text("Move", "main .actions a")
    page.wait("document.querySelector('#dialog #place')")
    page.fill("#dialog #place", "earliest")
    page.click("#dialog button.final")
    page.wait("document.querySelector('#dialog [data-receipt=ok]')")
    assert depth(cluster.nodes[0], topic) == 5


def test_publishing_works_without_scripts(page: Browser, cluster: Cluster, topic: str) -> None:
    page.allow_scripts(False)
    search(page, f"/topics/{topic}?tab=messages")
    page.click_text("Publish", "main a")
    page.fill("#body", "by hand")
    page.run("document.querySelector('#publish-node').value = arguments[0]", address_of(cluster))
    page.click("#sheet button.primary")
    page.wait_for_text("Done.", "#sheet")
    assert cluster.nodes[0].topic(topic)["message_count"] == 6


def test_replaying_works_without_scripts(page: Browser, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/channel/empty?topic={topic}&channel=c")
    page.allow_scripts(False)
    search(page, f"/topics/{topic}?tab=messages&filter=country")
    page.click("[name=pick]")
    page.click("#replay-selected")
    page.wait_for_text("Replay 1 message", "#sheet h1")
    page.click("#sheet button.primary")
    page.wait_for_text("1 message queued for redelivery to c", "#sheet")
    assert depth(cluster.nodes[0], topic) == 1


IS_FOUND = """document.querySelector('#messages tbody')?.innerText.includes('"order_id":123,')"""


def test_order_123_among_40000_is_found_and_replayed_to_one_channel_in_five_clicks(
    page: Browser, cluster: Cluster, admin: Nsqadmin
) -> None:
    topic, channels = "many-orders", ("billing", "shipping", "audit")
    for number, node in enumerate(cluster.nodes):
        node.post(f"/topic/create?topic={topic}")
        for channel in channels:
            node.post(f"/channel/create?topic={topic}&channel={channel}")
        publish_orders(node, topic, number * 20_000, 20_000)
        for channel in channels:
            until(lambda name=channel, on=node: on.channel(topic, name)["depth"] == 20_000, "all orders are there")
            node.post(f"/channel/empty?topic={topic}&channel={channel}")
    cluster.wait_for(topic)
    until(lambda: b"audit" in admin.http("GET", f"/topics/{topic}?fresh=1").body, "nsqadmin knows the topic")
    clicks = 0

    def click(text: str, selector: str) -> None:
        nonlocal clicks
        clicks += 1
        page.click_text(text, selector)

    page.open(f"/topics/{topic}")
    click("Messages", ".tabs a")
    page.fill("#filter", "order_id = 123")
    clicks += 1  # Enter
    page.press("enter")
    while page.wait(f"({IS_SLOW}) ? 'slow' : ({IS_FOUND})") == "slow":  # on a busy machine
        page.open(page.path)
    assert page.count("#messages tbody tr") == 1
    click("Replay…", "#messages tbody button")
    click("billing", "#dialog label")
    click("Replay", "#dialog button.primary")
    page.wait_for_text("1 message queued for redelivery to billing", "#dialog [data-receipt=ok]")
    assert clicks <= 5
    waiting = {name: sum(node.channel(topic, name)["depth"] for node in cluster.nodes) for name in channels}
    assert waiting == {"billing": 1, "shipping": 0, "audit": 0}
    for daemon in (*cluster.nodes, *cluster.lookupds):
        daemon.http("POST", f"/topic/delete?topic={topic}")


@pytest.mark.parametrize("width", [1400, 390])
def test_the_table_and_its_dialogs_are_accessible(page: Browser, topic: str, width: int) -> None:
    page.look(width=width, height=900)
    search(page, f"/topics/{topic}?tab=messages&filter=country&columns=country")
    page.wait_for_text("FR", "#messages tbody")
    assert page.run("return document.documentElement.scrollWidth") <= width
    open_row(page, 0)
    page.wait("document.querySelector('#detail pre, #dialog pre')")
    is_accessible_in_both_themes(page, f"messages-{width}", width)
    if width > 900:
        page.click_text("Replay…", "#messages tbody button")
        page.wait_for_text("Replay 1 message", "#dialog h1")
        is_accessible_in_both_themes(page, f"messages-replay-{width}", width)


def is_accessible_in_both_themes(page: Browser, name: str, width: int) -> None:
    page.look(width=width, height=900)
    shot(page, f"{name}-light")
    assert serious_violations(page) == []
    page.look(width=width, height=900, scheme="dark")
    shot(page, f"{name}-dark")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert serious_violations(page, only_colours=True) == []


ROWS = "return [...document.querySelectorAll('#messages tbody tr')].map((it) => it.outerHTML)"
CELLS = "return [...document.querySelectorAll('#messages tbody tr:first-child > :nth-last-child(-n+4)')].map((it) => it.innerHTML)"
NAMED = r'{"name":"M\u00fcller <b>%d</b>"}'


@pytest.fixture
def long_topic(cluster: Cluster, topic: str) -> str:
    """Add messages to the topic, so that its history is longer than one step."""
    node = cluster.nodes[0]
    bodies = [(NAMED % number).encode() for number in range(120)]
    node.post(f"/mpub?topic={topic}", b"\n".join(bodies))
    until(lambda: node.http("GET", f"/topic/log?topic={topic}").json["next"] == 125, "they are synced")
    return topic


def test_a_search_goes_on_with_the_same_rows_that_one_page_would_have(page: Browser, long_topic: str) -> None:
    asked = f"/topics/{long_topic}?tab=messages&filter=name+~+m%C3%BCller&columns=name&channel=c"
    search(page, f"{asked}&limit=500")
    page.wait_for_text("120 matches", "#hits")
    at_once = page.run(ROWS)
    search(page, f"{asked}&limit=50")
    page.wait_for_text("50 matches", "#hits")
    assert "Searched all" not in page.text("#found")
    assert page.text("#hits") == "First 50 matches; there are more"  # all 125 were examined at once
    assert page.text("#replay-shown") == "Replay these 50…"
    assert page.text("#replay-all") == "Replay all matches, also those not shown…"
    page.click("#go-on")
    page.wait_for_text("100 matches", "#hits")
    page.wait_for_text("Continue", "#go-on")
    page.click("#go-on")
    page.wait_for_text("120 matches", "#hits")
    page.wait_for_text("Searched all 125 messages", "#found")
    assert page.count("#go-on") == 0
    assert page.text("#replay-shown") == "Replay these 120…"
    assert (
        page.run("return document.querySelector('#replay-shown').value.split(' ').length") == 3
    )  # a range for each step
    assert page.text("#replay-all") == "Replay all matches…"
    assert page.run(ROWS) == at_once
    assert "channel=c" in at_once[-1]
    assert "<mark>" in at_once[-1]
    heights = "return [...document.querySelectorAll('#messages, #messages tr')].map((it) => it.getBoundingClientRect().height)"
    assert min(page.run(heights)) >= 24


def test_a_search_that_has_found_nothing_yet_does_not_say_that_nothing_matches(page: Browser, long_topic: str) -> None:
    page.allow_scripts(False)
    search(page, f"/topics/{long_topic}?tab=messages&limit=20&filter=name+~+m%C3%BCller")
    for hits in range(20, 120, 20):
        page.wait_for_text(f"{hits} matches", "#hits")
        page.click("#go-on")
    page.wait_for_text("120 matches", "#hits")
    if page.count("#go-on"):
        page.click("#go-on")
    page.wait_for_text("Searched all 125 messages", "#found")
    assert "Nothing matches" not in page.text("main")
    search(page, f"/topics/{long_topic}?tab=messages&filter=nosuchword")
    page.wait_for_text("Nothing matches", "#hits")


def test_a_tailed_row_has_the_cells_that_it_has_in_history(page: Browser, cluster: Cluster, topic: str) -> None:
    asked = f"/topics/{topic}?tab=messages&filter=name+~+m%C3%BCller&columns=name"
    search(page, asked)
    page.click("#tail")
    until(lambda: len(cluster.nodes[0].topic(topic)["channels"]) == 2, "the tail has subscribed")
    cluster.nodes[0].post(f"/pub?topic={topic}", (NAMED % 7).encode())
    page.wait_for_text("Müller <b>7</b>", "#messages tbody tr.new")
    tailed = page.run(CELLS)[:-1]  # all but the button to replay it, which needs a sequence
    page.click("#tail")
    page.wait_for_text("Tail stopped", "#tail-state")
    until(lambda: cluster.nodes[0].http("GET", f"/topic/log?topic={topic}").json["next"] == 6, "it is synced")
    search(page, asked)
    page.wait_for_text("1 match", "#hits")
    assert page.run(CELLS)[:-1] == tailed
    assert "<mark>Müller</mark>" in tailed[-1]


def test_every_disabled_control_says_why(page: Browser, topic: str) -> None:
    search(page, f"/topics/{topic}?tab=messages")
    assert page.run("return document.querySelector('#replay-selected').disabled")
    assert "Select messages" in page.text("#why-no-replay")
    for path in (f"/topics/{topic}?tab=messages", "/topics/archive?tab=messages", f"/actions/replay?topic={topic}"):
        page.open(path)
        silent = "return [...document.querySelectorAll('main :disabled')].filter((it) => !it.title).map((it) => it.outerHTML)"
        assert page.run(silent) == []


@pytest.mark.parametrize("width", [1200, 1000, 390])
def test_the_hits_do_not_collapse_in_a_low_window(page: Browser, long_topic: str, width: int) -> None:
    page.look(width=width, height=96)
    search(page, f"/topics/{long_topic}?tab=messages&filter=name&limit=50")
    page.wait_for_text("50 matches", "#hits")
    assert page.run("return document.querySelector('.browser .scroll').getBoundingClientRect().height") >= 300
