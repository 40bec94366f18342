"""Every page as people see it: light, dark, on a phone, without scripts; and the findings of accessibility tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.conftest import shot
from tests.support.browser import Browser
from tests.support.needs import need

pytestmark = pytest.mark.e2e

AXE: Final = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
NODE: Final = "nsqd-1.example%3A4151"
PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topics-filtered": "/topics?filter=depth%3E1000&sort=-depth",
    "topics-wrong-filter": "/topics?filter=dpeth%3E1",
    "topic": "/topics/orders",
    "topic-channels": "/topics/orders?tab=channels",
    "topic-nodes": "/topics/orders?tab=nodes",
    "topic-producers": "/topics/orders?tab=producers",
    "topic-messages": "/topics/orders?tab=messages",
    "topic-without-channels": "/topics/archive",
    "topic-inactive": "/topics/old-import",
    "topic-ephemeral": "/topics/clicks%23ephemeral",
    "channel": "/topics/orders/fraud",
    "channel-calm": "/topics/orders/billing",
    "channel-unattended": "/topics/signups/warehouse-loader.with-a-rather-long-name_v2",
    "channel-consumers": "/topics/orders/fraud?tab=consumers",
    "channel-hosts": "/topics/orders/fraud?tab=consumers&group=host",
    "channel-nodes": "/topics/orders/fraud?tab=nodes",
    "channel-messages": "/topics/orders/fraud?tab=messages",
    "consumers": "/consumers",
    "consumers-connections": "/consumers?group=none",
    "nodes": "/nodes",
    "node": f"/nodes/{NODE}",
    "node-down": "/nodes/10.0.3.17%3A4151",
    "lookup": "/lookup",
    "activity": "/activity",
    "counter": "/counter",
    "help": "/help",
    "confirm": "/actions/delete_topic?topic=orders",
    "confirm-seek": "/actions/seek_channel?topic=orders&channel=fraud",
    "create": "/actions/create_topic",
    "missing": "/topics/nope",
    "missing-page": "/nope",
}
# Only pages that look different when narrow or dark, not all of them again.
LOOKS: Final = [(1400, "light"), (1400, "dark"), (400, "light")]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_is_accessible_in_both_themes(still_page: Browser, name: str) -> None:
    axe = axe_core()
    for width, scheme in LOOKS:
        still_page.look(width=width, height=900, scheme=scheme)
        still_page.open(PAGES[name])
        assert still_page.run("return document.documentElement.scrollWidth") <= width
        assert has_title_landmarks_and_one_heading(still_page)
        shot(still_page, f"{name}-{scheme}-{width}")
        assert serious_violations(still_page, axe) == []
    if name.startswith("missing"):
        complaints = still_page.complaints()
        assert all("404" in it for it in complaints)


def axe_core() -> str:
    need("axe-core")
    return AXE.read_text(encoding="utf-8")


def serious_violations(browser: Browser, axe: str) -> list[str]:
    """Return axe's findings that keep people out: contrast, names, roles, order."""
    browser.run(axe + "; window.axe = axe;")
    found: list[dict[str, Any]] = browser.run(
        "return axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})"
        ".then((it) => it.violations)"
    )
    return [
        f"{it['id']}: {it['help']}: {[node['html'][:200] for node in it['nodes'][:3]]}"
        for it in found
        if it["impact"] in ("serious", "critical", "moderate")
    ]


def has_title_landmarks_and_one_heading(browser: Browser) -> bool:
    assert browser.title.partition(" · ")[0]
    assert browser.title.endswith("nsqadmin (3 problems)")
    assert browser.run("return document.documentElement.lang") == "en"
    assert [browser.count(it) for it in ("h1", "main", "header nav", "footer")] == [1, 1, 1, 1]
    assert browser.count("th:not([scope])") == 0
    assert browser.count("table:not(:has(caption))") == 0
    return True


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_without_scripts(still_page: Browser, name: str) -> None:
    still_page.open(PAGES[name])
    with_scripts = still_page.run("return document.querySelectorAll('main table tr').length")
    still_page.allow_scripts(False)
    still_page.open(PAGES[name])
    assert still_page.count("main h1") == 1
    assert still_page.run("return document.querySelectorAll('main table tr').length") == with_scripts
    visible = "return [...document.querySelectorAll('.needs-js')].filter((it) => it.getClientRects().length).length"
    assert still_page.run(visible) == 0
    still_page.complaints()


def test_a_first_visit_is_light(still_page: Browser) -> None:
    """Everything together has 60 kB compressed; scripts and styles have limits of their own."""
    still_page.open("/")
    sizes: list[tuple[str, int]] = still_page.run(
        "return performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
        ".map((it) => [it.name, it.encodedBodySize])"
    )
    assert sum(size for _, size in sizes) <= 60_000
    assert sum(size for name, size in sizes if name.split("?")[0].endswith(".js")) <= 30_000
    assert sum(size for name, size in sizes if name.endswith(".css")) <= 20_000


def test_with_forced_colours_states_and_charts_are_still_there(still_page: Browser) -> None:
    features = [{"name": "forced-colors", "value": "active"}]
    still_page.open("/")
    still_page.command("Emulation.setEmulatedMedia", {"features": features})
    assert still_page.run("return matchMedia('(forced-colors: active)').matches")
    canvas_text = "const it = document.createElement('i'); it.style.color = 'CanvasText'; document.body.append(it);"
    expected = still_page.run(f"{canvas_text} return getComputedStyle(it).color")
    assert still_page.run("return getComputedStyle(document.querySelector('.chart .line')).stroke") == expected
    assert still_page.run("return getComputedStyle(document.querySelector('.incident')).borderLeftWidth") != "0px"
    shot(still_page, "overview-forced-colours")


def test_nothing_moves_for_who_wants_no_motion(still_page: Browser) -> None:
    still_page.look(still=True)
    still_page.open("/topics")
    still_page.run("document.querySelector('[data-k]').classList.add('changed')")
    name = "return getComputedStyle(document.querySelector('[data-k]')).animationName"
    assert still_page.run(name) == "none"
    still_page.look(still=False)
    assert still_page.run(name) == "tint"


def test_colours_are_as_one_chose_also_on_the_next_page(still_page: Browser) -> None:
    still_page.look(scheme="dark")
    still_page.open("/")
    background = "return getComputedStyle(document.body).backgroundColor"
    assert still_page.run(background) == "rgb(15, 20, 28)"
    still_page.click("#theme")
    assert still_page.text("#theme-word") == "Light"
    still_page.open("/topics")
    assert still_page.run(background) == "rgb(255, 255, 255)"
