"""Every page as people see it: light, dark, on a phone, without scripts; and the findings of accessibility tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.conftest import shot
from tests.support.browser import Browser
from tests.support.needs import need

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
WIDE: Final = 1400
NARROW: Final = 400
# The rules of axe that find something else in another theme.
OF_COLOURS: Final = ("color-contrast", "link-in-text-block")
# Elements with text or a field, by their kind: the same place among the same tags and classes, with the same colours,
# letters and state. Contrast takes three quarters of axe's time, and finds the same for each row of a table.
KINDS: Final = """
const places = new WeakMap(), kinds = window.kinds = {};
const hash = (text) => {
  let a = 0xdeadbeef, b = 0x41c6ce57;
  for (let at = 0; at < text.length; at += 1) {
    a = Math.imul(a ^ text.charCodeAt(at), 2654435761);
    b = Math.imul(b ^ text.charCodeAt(at), 1597334677);
  }
  return (a >>> 0).toString(36) + (b >>> 0).toString(36);
};
const placeOf = (it) => {
  if (!it) return '';
  let place = places.get(it);
  if (place === undefined) {
    const { backgroundColor, backgroundImage, opacity, position, filter, mixBlendMode } = getComputedStyle(it);
    const looks = [backgroundColor, backgroundImage, opacity, position, filter, mixBlendMode];
    const own = [it.tagName, it.getAttribute('class'), ...looks, it.matches(':disabled, [aria-disabled=true]')];
    places.set(it, place = hash(placeOf(it.parentElement) + own.join()));
  }
  return place;
};
for (const it of document.querySelectorAll('body *')) {
  const text = [...it.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data.trim()).join('');
  if (!(text || it.matches('input, select, textarea, button')) || !it.checkVisibility()) continue;
  const { color, fontSize, fontWeight, textDecorationLine, textShadow } = getComputedStyle(it);
  const letters = [color, fontSize, fontWeight, textDecorationLine, textShadow];
  const among = it.matches('a') && it.parentElement.innerText.length > it.innerText.length;
  // Axe does not judge a single letter.
  (kinds[hash([placeOf(it), ...letters, among, it.closest('label')?.control?.disabled, text.length > 1].join())] ??= []).push(it);
}
return [Object.keys(kinds), Boolean(window.axe)];
"""
# Has axe judge the colours of the first of each kind that is asked for, and perhaps those of all links.
RUN: Final = """
const chosen = arguments[0].map((kind) => kinds[kind]?.[0]).filter(Boolean);
for (const it of chosen) it.setAttribute('data-chosen', '');
const links = arguments[2] ? 'a[href]' : 'a[href][data-chosen]';
axe.configure({rules: [{id: 'color-contrast', selector: '[data-chosen]'}, {id: 'link-in-text-block', selector: links}]});
return axe.run(document, arguments[1]).then((it) => it.violations)
  .finally(() => chosen.forEach((it) => it.removeAttribute('data-chosen')));
"""
# Shows the HTML of the page's address as it is without scripts, which do not run in what another script inserts. That
# costs a tenth of a load. Pages that are loaded without scripts are in other tests, each with what a user does there.
AS_WITHOUT_SCRIPTS: Final = """
return fetch(location.href, {headers: {accept: 'text/html'}}).then((it) => it.text()).then((html) => {
  const page = new DOMParser().parseFromString(html, 'text/html');
  for (const it of document.documentElement.getAttributeNames()) document.documentElement.removeAttribute(it);
  for (const it of page.documentElement.attributes) document.documentElement.setAttribute(it.name, it.value);
  document.body.replaceWith(page.body);
});
"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_is_accessible_in_both_themes_and_is_whole_without_scripts(
    still_page: Browser, name: str
) -> None:
    still_page.look(width=WIDE, height=900)
    still_page.open(PAGES[name])
    rows = still_page.count("main table tr")
    assert has_title_landmarks_and_one_heading(still_page)
    fits_and_is_accessible(still_page, name)
    assert has_title_landmarks_and_one_heading(still_page)
    still_page.run(AS_WITHOUT_SCRIPTS)
    assert still_page.counts("main h1", "main table tr") == [1, rows]
    visible = "return [...document.querySelectorAll('.needs-js')].filter((it) => it.getClientRects().length).length"
    assert still_page.run(visible) == 0
    if name.startswith("missing"):
        complaints = still_page.complaints()
        assert all("404" in it for it in complaints)


def fits_and_is_accessible(browser: Browser, name: str, *, narrow: int = NARROW) -> None:
    """Check the page that is open: wide in both themes, and narrow, as which it stays.

    Axe looks at everything once, and then at what another theme or width can change. No answer of nsqadmin depends on
    these, and its scripts follow them, so a page is loaded once.
    """
    for width in (WIDE, narrow):
        browser.look(width=width, height=900)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        shot(browser, f"{name}-light-{width}")
        assert serious_violations(browser) == []
        if width == WIDE:
            browser.look(width=width, height=900, scheme="dark")
            assert browser.run("return document.documentElement.scrollWidth") <= width
            shot(browser, f"{name}-dark-{width}")
            assert serious_violations(browser, only_colours=True) == []


def serious_violations(browser: Browser, *, only_colours: bool = False) -> list[str]:
    """Return axe's findings that keep people out: contrast, names, roles, order. Leave axe in the page.

    It judges the contrast of one element of each kind, and not of those kinds that were good on a page before.
    """
    kinds, has_axe = browser.run(KINDS)
    new = set(kinds) - browser.good_kinds
    if only_colours and not new:
        return []
    if not has_axe:
        need("axe-core")
        browser.command("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
    options: dict[str, object] = {"resultTypes": ["violations"]}
    options |= {"runOnly": OF_COLOURS} if only_colours else {"rules": {"target-size": {"enabled": True}}}
    found = _serious(browser.run(RUN, sorted(new), options, not only_colours))
    if not found:
        browser.good_kinds |= new
    return found


def _serious(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{it['id']}: {it['help']}: {[node['html'][:200] for node in it['nodes'][:3]]}"
        for it in found
        if it["impact"] in ("serious", "critical", "moderate")
    ]


def test_one_cell_that_is_hard_to_read_is_found_also_when_all_others_were_good(still_page: Browser) -> None:
    still_page.open("/topics")
    for scheme in ("light", "dark"):
        still_page.look(scheme=scheme)
        assert serious_violations(still_page, only_colours=True) == []
        assert serious_violations(still_page, only_colours=True) == []
        dim = "[...document.querySelectorAll('main tbody th a')].at(-1).style.color = arguments[0]"
        still_page.run(dim, "#777")
        assert serious_violations(still_page, only_colours=True)[0].startswith("color-contrast")
        assert serious_violations(still_page, only_colours=True), "it is found again"
        still_page.run(dim, "")
    still_page.run("document.querySelector('main tbody th a').textContent = ''")
    assert [it.partition(":")[0] for it in serious_violations(still_page)] == ["link-name"]


def has_title_landmarks_and_one_heading(browser: Browser) -> bool:
    title, language = browser.run("return [document.title, document.documentElement.lang]")
    assert title.partition(" · ")[0]
    assert title.endswith("nsqadmin (3 problems)")
    assert language == "en"
    assert browser.counts("h1", "main", "header nav", "footer") == [1, 1, 1, 1]
    assert browser.counts("th:not([scope])", "table:not(:has(caption))") == [0, 0]
    return True


def test_a_theme_changes_nothing_but_colours(still_page: Browser) -> None:
    """So widths, names and sizes are tested in one of them."""
    still_page.open("/")
    rules: list[tuple[str, list[str]]] = still_page.run(
        "const open = (it) => it instanceof CSSMediaRule ? [...it.cssRules] : [it];"
        "const isColour = (it, name) => name === 'color-scheme' || name === '--shadow'"
        "  || name.startsWith('--') && CSS.supports('color', it.style.getPropertyValue(name));"
        "return [...document.styleSheets].flatMap((it) => [...it.cssRules])"
        ".filter((it) => /data-theme|prefers-color-scheme/.test(it.cssText)).flatMap(open)"
        ".map((it) => [it.selectorText, [...it.style ?? []].filter((name) => !isColour(it, name))])"
    )
    assert dict(rules) == {':root[data-theme="dark"]': [], ":root:not([data-theme])": []}


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
