"""What eyes and fingers meet, measured: lines on which things stand, sizes of targets, headers in sight, charts, phones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nsqadmin.cluster.model import Activity
from nsqadmin.cluster.recording import encode
from tests.browser.conftest import prepared
from tests.browser.demo import demo
from tests.browser.test_pages import fits_and_is_accessible
from tests.support.browser import Browser
from tests.support.picture import NOW
from tests.support.process import Nsqadmin

WITH_TABLES = [
    "/topics",
    "/topics/orders?tab=channels",
    "/consumers",
    "/consumers?group=none",
    "/nodes",
    "/topics/orders/fraud",
]
BASELINES = """
const bottoms = (row) => [...row.querySelectorAll('th > a, td.n [data-k], td.n:not(:has([data-k], .button)), .state')]
  .filter((it) => it.getClientRects().length)
  .map((it) => { const range = document.createRange(); range.selectNodeContents(it); return range; })
  .map((range) => [...range.getClientRects()].filter((box) => box.height > 10)[0]?.bottom)
  .filter((bottom) => bottom !== undefined);
return [...document.querySelectorAll('tr[data-row]')].map(bottoms).filter((it) => it.length > 2)
  .map((it) => Math.max(...it) - Math.min(...it));
"""


def test_everything_in_a_row_of_topics_stands_on_one_line(still_page: Browser) -> None:
    still_page.open("/topics")
    apart = still_page.run(BASELINES)
    assert len(apart) > 8
    assert max(apart) < 1.0


def test_the_button_of_a_form_stands_beside_its_fields(still_page: Browser) -> None:
    still_page.open("/topics/orders/fraud?tab=messages")
    still_page.run(
        "const form = document.createElement('form'); form.className = 'bar';"
        "form.innerHTML = '<div class=field><label for=a>A</label><input id=a></div><div class=field><button>Show</button></div>';"
        "document.querySelector('main').append(form)"
    )
    bottoms = still_page.run(
        "return ['form.bar input', 'form.bar button'].map((it) => [...document.querySelectorAll('main ' + it)].at(-1))"
        ".map((it) => it.getBoundingClientRect().bottom)"
    )
    assert abs(bottoms[0] - bottoms[1]) < 1


@pytest.mark.parametrize("path", ["/topics/nope", "/nope"])
def test_no_box_touches_the_words_above_it(still_page: Browser, path: str) -> None:
    still_page.open(path)
    gaps = still_page.run(
        "return [...document.querySelectorAll('main :is(.empty, .message, .scroll, .notice)')]"
        ".filter((it) => it.previousElementSibling?.getClientRects().length)"
        ".map((it) => it.getBoundingClientRect().top - it.previousElementSibling.getBoundingClientRect().bottom)"
    )
    assert gaps
    assert min(gaps) >= 8
    still_page.complaints()  # of the 404


@pytest.mark.parametrize("path", WITH_TABLES)
def test_the_header_of_a_long_table_stays_in_sight(still_page: Browser, path: str) -> None:
    still_page.look(height=500)
    still_page.open(path)
    # The same rows again and again: as long as a table of a large cluster.
    still_page.run(
        "const body = document.querySelector('.scroll tbody:last-of-type');"
        "for (let i = 0; i < 40; i += 1) body.after(body.cloneNode(true));"
    )
    look = (
        "scrollTo(0, 0);"
        "const last = document.querySelector('.scroll').querySelector('tbody:last-of-type tr:last-child');"
        "last.scrollIntoView({block: 'nearest'});"
        "const head = document.querySelector('.scroll thead th').getBoundingClientRect(), row = last.getBoundingClientRect();"
        "const top = getComputedStyle(document.querySelector('.top')).position === 'sticky' ? document.querySelector('.top').getBoundingClientRect().bottom : 0;"
        "return [head.top >= top - 1 && head.bottom <= innerHeight, row.top >= head.bottom - 1]"
    )
    for width in (1400, 1000):
        still_page.look(width=width, height=500)
        assert still_page.run(look) == [True, True], width


@pytest.mark.parametrize("path", WITH_TABLES)
def test_every_table_is_sorted_by_its_headers_without_a_script(still_page: Browser, path: str) -> None:
    """The HTML says so: no script runs in it."""
    still_page.open("/ping")
    links: list[tuple[str, list[str]]] = still_page.run(
        "const hrefs = (page, which) => [...page.querySelectorAll(which)].map((it) => it.getAttribute('href'));"
        "const read = (path) => fetch(path).then((it) => it.text()).then((it) => new DOMParser().parseFromString(it, 'text/html'));"
        "const sorted = (link) => read(link).then((page) => [link, hrefs(page, 'main th[aria-sort] > a')]);"
        "return read(arguments[0]).then((page) => hrefs(page, 'main thead th > a:not(.ask)'))"
        ".then((links) => Promise.all(links.map(sorted)))",
        path,
    )
    assert len(links) > 5
    for link, of_sorted in links:
        column = link.split("=")[-1].removeprefix("-")
        assert any(column in it for it in of_sorted), link


def test_the_worst_consumer_is_on_top_with_its_state_in_words(still_page: Browser) -> None:
    still_page.open("/consumers?group=none")
    states = still_page.run("return [...document.querySelectorAll('tbody .state')].map((it) => it.innerText)")
    assert states[0] == "RDY 0"
    assert states[1] == "Slow"
    assert states.index("OK") > max(at for at, word in enumerate(states) if word == "Slow")
    still_page.open("/consumers?group=none&sort-consumers=-rate")
    assert still_page.text("tbody tr:first-child th").startswith("billing")


# Charts


def test_lines_of_a_chart_differ_by_more_than_their_colour(still_page: Browser) -> None:
    for scripts in (True, False):
        still_page.allow_scripts(scripts)
        still_page.open("/topics/orders/fraud")
        dashes = still_page.run(
            "return [...document.querySelectorAll('.chart')].map((it) => [...it.querySelectorAll('svg.plot .line')]"
            ".map((line) => getComputedStyle(line).strokeDasharray))"
        )
        assert len(dashes) == 4
        assert all(len(set(each)) == len(each) for each in dashes if len(each) > 1)
        keys = still_page.run("return [...document.querySelectorAll('.chart .key')].map((it) => it.textContent)")
        assert all(any(key.startswith(word) for key in keys) for word in ("in ", "out ", "requeued ", "timed out "))


def test_charts_without_a_script_keep_the_size_of_their_text_and_fill_their_box(still_page: Browser) -> None:
    still_page.allow_scripts(False)
    still_page.open("/topics/orders/fraud")
    for width in (1280, 1400, 400):
        still_page.look(width=width)
        heights = still_page.run(
            "return [...document.querySelectorAll('.chart svg.plot > text')].map((it) => it.getBoundingClientRect().height)"
        )
        assert min(heights) > 10
        spread = still_page.run(
            "const plot = document.querySelector('.chart svg.plot'), line = plot.querySelector('.line');"
            "return [line.getBoundingClientRect().width / plot.getBoundingClientRect().width, plot.getBoundingClientRect().height]"
        )
        assert spread[0] > 0.75
        assert spread[1] == 128


def test_the_ticks_of_a_chart_are_round_and_its_title_is_whole(still_page: Browser) -> None:
    still_page.look(width=1280)
    still_page.open("/topics/orders/fraud")
    for number in range(4):
        words = still_page.run(
            "return [...document.querySelectorAll('.chart')][arguments[0]].querySelector('svg.plot').textContent",
            number,
        )
        assert "22:05" in words
        assert "22:10" in words
        assert "−" not in words
    cut = "return [...document.querySelectorAll('.chart figcaption b')].filter((it) => it.scrollWidth > it.clientWidth + 1 && it.clientWidth).length"
    assert still_page.run(cut) == 0


def test_the_time_at_the_cursor_is_of_24_hours(still_page: Browser) -> None:
    still_page.open("/topics/orders/fraud")
    still_page.run("document.querySelector('svg.plot').focus()")
    still_page.press("\ue012")  # arrow left
    still_page.wait("!document.querySelector('.tip').hidden")
    assert not still_page.run("return /AM|PM/.test(document.querySelector('.tip').innerText)")


def test_only_a_number_that_passes_a_limit_is_tinted(page: Browser) -> None:
    stream = (
        "window.EventSource = class { constructor() { window.stream = this; this.heard = {}; }"
        " addEventListener(name, hear) { this.heard[name] = hear; } close() {} }; window.EventSource.CLOSED = 2;"
    )
    added = page.command("Page.addScriptToEvaluateOnNewDocument", {"source": stream})
    try:
        page.open("/topics")
        tinted = page.run(
            "const key = 'topics/orders/billing/', cell = (name) => document.querySelector(`[data-k='${key}${name}']`);"
            "return [10, 11, 900, 1500, 1600, 20].map((value, t) => {"
            "  const set = {[key + 'depth']: value, [key + 'incoming']: value};"
            "  stream.heard.cells({data: JSON.stringify({index: t, t, set})});"
            "  return ['depth', 'incoming'].map((name) => cell(name).classList.contains('changed')); });"
        )
    finally:
        page.command("Page.removeScriptToEvaluateOnNewDocument", added)
    assert [it[0] for it in tinted] == [False, False, False, True, False, True]
    assert not any(it[1] for it in tinted)


# Small things to reach


def test_question_marks_are_no_stops_of_the_tab_key_and_help_is_one(still_page: Browser) -> None:
    still_page.open("/topics/orders/fraud")
    assert still_page.count(".ask:not([tabindex='-1'])") == 0
    assert still_page.count("header a[href$='/help'], footer a[href$='/help']") == 2


def test_the_key_x_is_listed_where_rows_have_a_box(still_page: Browser) -> None:
    for path, is_listed in (("/topics", True), ("/lookup", True), ("/nodes", False)):
        still_page.open(path)
        still_page.press("?")
        still_page.wait_for_text("Keys", "#dialog")
        assert ("select the row" in still_page.text("#dialog")) is is_listed


def test_an_address_without_a_page_is_a_page_for_people_and_json_for_programs(still_page: Browser) -> None:
    still_page.open("/nope?x=1")
    assert still_page.text("h1") == "No such page"
    assert still_page.count(".menu a") == 7
    fetched = (
        "return fetch(arguments[0], {headers: arguments[1]}).then((it) => it.text().then((text) => [it.status, text]))"
    )
    assert still_page.run(fetched, "/nope", {"accept": "application/json"}) == [404, '{"message":"NOT_FOUND"}']
    assert still_page.run(fetched, "/api/nope", {"accept": "text/html"}) == [404, '{"message":"NOT_FOUND"}']
    still_page.complaints()


# On a phone


def test_on_a_phone_every_entry_of_the_menu_is_in_sight(still_page: Browser) -> None:
    still_page.look(width=400)
    for path in ("/", "/topics/orders", "/topics/orders/fraud"):
        still_page.open(path)
        inside = "return [...document.querySelectorAll(arguments[0])].every((it) => it.getBoundingClientRect().right <= innerWidth)"
        assert still_page.run(inside, ".menu a, .tabs a")


def test_on_a_phone_a_bar_and_its_number_are_on_one_line(still_page: Browser) -> None:
    still_page.look(width=400)
    still_page.open("/topics")
    apart = still_page.run(
        "return [...document.querySelectorAll('.measure')].map((it) => [it.querySelector('svg'), it.querySelector('[data-k]')]"
        ".map((part) => part.getBoundingClientRect())).map(([bar, number]) => bar.top - number.bottom)"
    )
    assert apart
    assert max(apart) < 0


@pytest.fixture(scope="module")
def big_admin(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    """Run nsqadmin on a recording of 300 topics with two channels each, and of 400 actions."""
    it = demo()
    (billing, *_), (_, *rest) = it.snapshot.topics[3].channels, it.snapshot.topics
    topics = tuple(
        replace(
            rest[2],
            name=f"tenant_{at:03}.events",
            channels=tuple(replace(billing, topic=f"tenant_{at:03}.events", name=name) for name in ("index", "mail")),
        )
        for at in range(300)
    )
    deeds = tuple(
        Activity(at=NOW - at, what="pause_channel", text=f"paused {at}", user="ana", topic="t", result="ok")
        for at in range(400)
    )
    file = tmp_path_factory.mktemp("big") / "big.json"
    file.write_bytes(encode(replace(it, snapshot=replace(it.snapshot, topics=topics, _by_name={}), activity=deeds)))
    with Nsqadmin(f"snapshot={file}") as admin:
        yield admin


@pytest.mark.parametrize(("path", "rows"), [("/topics", 150), ("/activity", 50), ("/consumers?group=none", 50)])
def test_on_a_phone_a_page_of_a_large_cluster_ends(
    chromium: Browser, big_admin: Nsqadmin, path: str, rows: int
) -> None:
    """Topics had 31,000 pixels and Activity 50,000."""
    for page in prepared(chromium, big_admin):
        page.look(width=400)
        page.open(path)
        assert page.count("main tbody tr[data-row]") == rows
        assert page.run("return document.documentElement.scrollHeight") < 16_000
        first = page.text("main tbody tr th")
        page.click_text("Next", "main .pager a")
        page.wait("document.querySelector('.pager')?.innerText.includes('Page 2 of')")
        assert page.text("main tbody tr th") != first or path.startswith("/consumers")
        assert page.run("return document.documentElement.scrollWidth") <= 400


def test_the_bar_of_what_is_selected_sticks_to_the_top(chromium: Browser, big_admin: Nsqadmin) -> None:
    for page in prepared(chromium, big_admin):
        page.look(width=1280)
        page.open("/topics")
        page.run("document.querySelectorAll('[name=pick]')[1].click()")
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            page.look(width=width, scheme=scheme)
            page.run("dispatchEvent(new Event('resize')); scrollTo(0, 2000)")
            above, bar, below, header = page.run(
                "const box = (it) => document.querySelector(it).getBoundingClientRect(), bar = box('[data-picked]');"
                "return [Math.max(0, box('header.top').bottom), bar.top, bar.bottom, box('thead th').top]"
            )
            assert abs(bar - above) <= 1, "just below what sticks above it"
            assert width < 641 or abs(header - below) <= 1, "and the table's header just below the bar"
            assert "1 selected" in page.text("[data-picked]")
            assert page.run("return document.documentElement.scrollWidth") <= width


def test_a_selection_can_be_read_in_both_themes_and_on_a_phone(still_page: Browser) -> None:
    still_page.look(width=1280)
    still_page.open("/topics")
    still_page.run("for (const box of [...document.querySelectorAll('[name=pick]')].slice(0, 2)) box.click()")
    assert "2 selected" in still_page.text("[data-picked]")
    fits_and_is_accessible(still_page, "topics-picked", narrow=390)


def test_a_whole_row_opens_but_not_where_text_is_selected_or_something_else_is_clicked(still_page: Browser) -> None:
    path = "return location.pathname"
    still_page.open("/topics")
    still_page.run("getSelection().selectAllChildren(document.querySelector('tr.channel td[data-label=Lag]'))")
    still_page.run("document.querySelector('tr.channel td[data-label=Lag]').click()")
    assert still_page.run(path) == "/topics"
    still_page.run("getSelection().removeAllRanges(); document.querySelector('tr.channel .pick').click()")
    assert still_page.run(path) == "/topics"
    assert still_page.count("[name=pick]:checked") == 1
    for start, row in (
        ("/topics", "tr.channel td[data-label=Depth]"),
        ("/incidents", ".incident .facts"),
        ("/consumers?group=none", "tbody td[data-label=State]"),
    ):
        still_page.open(start)
        link = "const row = document.querySelector(arguments[0]).closest('tr, li'); return row.querySelector('th > a, .says > a').href"
        target = still_page.run(link, row)
        still_page.run("document.querySelector(arguments[0]).click()", row)
        still_page.wait("location.href === arguments[0]", target)


def test_on_a_phone_the_page_of_a_node_with_many_topics_ends(chromium: Browser, big_admin: Nsqadmin) -> None:
    """It had 37,807 pixels. Its consumers have pages of their own."""
    for page in prepared(chromium, big_admin):
        page.look(width=390)
        page.open("/nodes/nsqd-1.example%3A4151")
        topics = "[data-live=topics]"
        assert page.count(f"{topics} tr.topic") == 20
        assert page.run(f"return document.querySelector('{topics}').offsetHeight") < 10_000
        first = page.text(f"{topics} tr.topic th")
        page.click_text("Next", f"{topics} .pager a")
        page.wait_for_text("Page 2 of", topics)
        assert page.text(f"{topics} tr.topic th") != first
