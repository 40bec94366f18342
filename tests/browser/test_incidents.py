"""The first page in an outage: what is seen without scrolling, on a phone, with the keyboard, and while it changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_live import HEAR
from tests.browser.test_pages import fits_and_is_accessible, serious_violations
from tests.support.browser import Browser
from tests.support.outage import outage
from tests.support.process import Nsqadmin, eventually

PATTERN = "tenant_*.events/indexer"
BOTTOMS = "return [...document.querySelectorAll(arguments[0])].map((it) => it.getBoundingClientRect().bottom)"


@pytest.fixture(scope="module")
def outage_admin(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    from nsqadmin.cluster.model import Recording
    from nsqadmin.cluster.recording import encode

    file = tmp_path_factory.mktemp("snapshot") / "outage.json"
    file.write_bytes(encode(Recording(snapshot=outage())))
    with Nsqadmin(f"snapshot={file}") as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture
def outage_page(chromium: Browser, outage_admin: Nsqadmin) -> Iterator[Browser]:
    yield from prepared(chromium, outage_admin)


def key_of(admin: Nsqadmin, subject: str) -> str:
    def found() -> str | None:
        incidents = admin.json("GET", "/api/v2/incidents").json["incidents"]
        return next((it["key"] for it in incidents if it["subject"] == subject), None)

    return str(eventually(found))


def test_causes_and_the_highest_are_seen_without_scrolling(outage_page: Browser) -> None:
    outage_page.look(width=1400, height=900)
    outage_page.open("/")
    shot(outage_page, "outage")
    cards = outage_page.run(BOTTOMS, ".home-incidents > .incidents > .incident")
    assert 3 <= len(cards) <= 8
    assert max(cards) <= 900
    headings = outage_page.run(BOTTOMS, ".tops h2")
    assert len(headings) == 4
    assert max(headings) <= 900
    assert outage_page.text("main").count("does not answer") == 1


def test_a_phone_does_not_scroll_for_ever(outage_page: Browser) -> None:
    outage_page.look(width=400, height=900)
    outage_page.open("/")
    assert outage_page.run("return document.documentElement.scrollWidth") <= 400
    assert outage_page.run("return document.documentElement.scrollHeight") < 4000  # it was 13,414


@pytest.mark.parametrize("path", ["/incidents", "/incidents?severity=info", "/incidents/KEY", "/incidents/KEY/mark"])
def test_the_pages_fit_and_are_accessible_in_both_themes(
    outage_page: Browser, outage_admin: Nsqadmin, path: str
) -> None:
    outage_page.open(path.replace("KEY", key_of(outage_admin, PATTERN)))
    assert outage_page.count("h1") == 1
    fits_and_is_accessible(outage_page, f"outage{path.replace('/', '-')}")
    assert outage_page.count("h1") == 1


def test_an_incident_is_complete_without_a_script(outage_page: Browser, outage_admin: Nsqadmin) -> None:
    outage_page.allow_scripts(False)
    outage_page.open("/")
    outage_page.click_text(PATTERN, ".incident .says a")
    assert "38 channels have no consumer" in outage_page.text("h1")
    assert "Timeline" in outage_page.text("main")
    outage_page.click_text("plain text", "a")
    assert outage_page.text("body").startswith(f"PROBLEM: {PATTERN}: 38 channels have no consumer")


def test_an_incident_is_acknowledged_with_the_keyboard(page: Browser, admin: Nsqadmin) -> None:
    key = key_of(admin, "orders/fraud")
    page.open(f"/incidents/{key}")
    page.run("document.querySelector('.actions a[href*=acknowledge]').focus()")
    page.press("enter")
    page.wait("document.querySelector('#dialog').open")
    page.run("document.querySelector('#note').focus()")
    page.press("looking at it", "enter")
    page.wait_for_text("You acknowledged it", "#dialog")
    page.press("enter")  # Close has the focus
    page.wait_for_text("looking at it", "[data-live='marks']")
    page.open("/")
    page.wait_for_text("looking at it", ".incident.known")  # after all open ones


def enabled(page: Browser) -> list[str]:
    """Return the marks that can be put on the selected incidents, or taken back."""
    found: list[str] = page.run(
        "return [...document.querySelectorAll('[data-picked] [name=do]:enabled')].map((it) => it.textContent.trim())"
    )
    return found


def test_several_incidents_are_muted_and_unmuted(page: Browser) -> None:
    page.open("/incidents")
    page.press("j", "x")
    assert page.count("[data-row].here [name=pick]:checked") == 1
    page.click("[data-picked] [data-pick-all]")
    assert page.run(
        "return [...document.querySelectorAll('[name=pick]')].every((it) => it.checked || !it.checkVisibility())"
    )
    page.click_text("Clear", "[data-picked] button")
    for subject in ("archive", "clicks"):
        page.click(f"[name=pick][aria-label^='Select {subject}']")
    assert enabled(page) == ["Acknowledge…", "Mute…"]  # there is nothing to take back
    page.click_text("Mute…", "[data-picked] button")
    page.wait_for_text("Mute 2 incidents", "#dialog h1")
    page.fill("#dialog #note", "a drill")
    assert serious_violations(page) == []
    page.click("#dialog button.primary")
    page.wait_for_text("2 incidents muted until", "#dialog [data-receipt=ok]")
    page.click_text("Close", "#dialog a")
    page.wait_for_text("2 muted", "main")
    assert enabled(page) == ["Acknowledge…", "Unmute…"]
    page.click_text("Unmute…", "[data-picked] button")  # they are still selected
    page.click_text("Unmute", "#dialog button.primary")
    page.wait_for_text("2 incidents no longer muted", "#dialog [data-receipt=ok]")


def test_the_text_is_copied(page: Browser, admin: Nsqadmin) -> None:
    page.open(f"/incidents/{key_of(admin, 'orders/fraud')}")
    assert page.text("pre[data-copy]").startswith("PROBLEM: orders/fraud: ")
    assert page.count("pre[data-copy] + .copy") == 1


def test_cards_stay_where_they_are_under_the_pointer_and_the_page_does_not_jump(page: Browser) -> None:
    page.look(width=1400, height=900)
    page.open("/")
    page.run(
        "window.shift = 0; new PerformanceObserver((list) => { for (const it of list.getEntries()) window.shift += it.value; })"
        ".observe({type: 'layout-shift', buffered: false})"
    )
    # The new sample may change the verdict, whose announcement then stands in place of this one within milliseconds.
    page.run(HEAR)
    heard = "window.heard.filter((it) => it === 'All nodes were asked').length === arguments[0]"
    cards = "return [...document.querySelectorAll('.incident .says > a')].map((it) => it.href)"
    shown = None
    while shown != (now := page.run(cards)):  # another one takes its place, as for a node that is slow for a moment
        shown = now
        page.run("window.shift = 0; window.heard.length = 0")
        page.run("document.querySelector('.incident a').focus(); window.held = document.activeElement")
        taken = page.run("return document.querySelector('#asof').title || document.body.dataset.taken")
        page.press("r")
        page.wait(heard, 1)
        assert taken
        assert page.run("return window.held.isConnected && document.activeElement === window.held")
        page.run("document.activeElement.blur()")
        page.press("r")
        page.wait(heard, 2)
    assert page.run("return window.shift") < 0.05
