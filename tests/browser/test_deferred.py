"""Deferred messages on the pages: found, cancelled, moved; without scripts, on a phone, with the keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot
from tests.browser.test_pages import fits_and_is_accessible
from tests.nsqadmin.whole.test_deferred import COUNT, TAB, Three, names, three_nodes
from tests.support.browser import Browser

# The tests share the nodes, and come in any order. Two take one message each from c, order-2-11 and order-1-1, which no
# other test needs, and compare with the counts before. This channel is for the test that takes many.
OTHER = TAB.replace("/c?", "/other?")


@pytest.fixture(scope="module")
def three(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with three_nodes(tmp_path_factory.mktemp("three")) as it:
        yield it


@pytest.fixture
def page(chromium: Browser, three: Three) -> Iterator[Browser]:
    yield from prepared(chromium, three.admin)


def test_the_tab_and_the_plan_can_be_read(page: Browser) -> None:
    page.open(TAB)
    fits_and_is_accessible(page, "deferred", narrow=390)
    page.look()
    page.run("document.querySelector('input[name=pick]').click()")
    page.click_text("Cancel selected…")
    page.wait_for_text("This cannot be undone", "#dialog")
    fits_and_is_accessible(page, "deferred-cancel", narrow=390)
    page.click_text("Keep it", "#dialog a")


def test_it_works_without_scripts(page: Browser, three: Three) -> None:
    first, second, third = three.deferred()
    page.allow_scripts(False)
    page.open(f"{TAB}&filter=order-2-11")
    page.wait_for_text("1 match")
    page.click("input[name=pick]")
    page.click_text("Deliver now…")
    page.wait_for_text("Make 1 deferred message of t/c due now")
    page.click_text("Set due time")
    page.wait_for_text("1 message made due now.")
    assert three.deferred() == [first, second, third - 1]


def test_with_the_keyboard_a_message_is_opened_and_cancelled(page: Browser, three: Three) -> None:
    page.open(f"{TAB}&filter=order-1-1")
    first, second, third = three.deferred()
    page.run("document.querySelector('input[name=pick]').focus()")
    page.press(" ")
    page.run("document.querySelector('#messages a[data-detail]').focus()")
    page.press("enter")
    page.wait_for_text("<script>alert(1)</script>", "#detail pre")
    shot(page, "deferred-detail")
    page.press("escape")
    page.run("document.querySelector('form[data-in-dialog] button').focus()")
    page.press("enter")
    page.wait_for_text("This cannot be undone", "#dialog")
    assert page.run("return document.activeElement.tagName") == "H1"  # Enter alone cancels nothing
    page.press("enter", "tab")
    assert page.run("return document.activeElement.textContent") == "Keep it"
    page.press("tab", "enter")
    page.wait_for_text("1 message cancelled.", "#dialog")
    shot(page, "deferred-receipt")
    page.press("enter")
    page.wait("!document.querySelector('#messages input[name=pick][value^=\"1@\"]')")  # its row is gone
    assert three.deferred() == [first, second - 1, third]


def test_what_matches_is_cancelled_after_its_number_was_typed_and_never_delivered(page: Browser, three: Three) -> None:
    page.open(OTHER)
    page.fill("#filter", "header.region = eu")
    page.click_text("Search", "main button")
    page.wait_for_text("9 matches", "main")
    page.click_text("Cancel all that match…")
    page.wait_for_text("Type 9", "#dialog")
    assert page.run("return document.querySelector('#dialog button.danger').disabled")
    page.fill("#typed", "9")
    shot(page, "deferred-cancel-all")
    page.click("#dialog button.danger")
    page.wait_for_text("9 messages cancelled.", "#dialog")
    page.click_text("Close", "#dialog a")
    page.wait_for_text("No matches.", "#messages")
    page.open(OTHER)
    page.run("document.querySelector('input[name=pick]').click()")
    page.click_text("Change due time…")
    page.wait_for_text("Change the due time of 1 deferred message", "#dialog")
    page.fill("#when", "50m")
    shot(page, "deferred-move")
    page.click("#dialog button.primary")
    page.wait_for_text("1 message made due in 50m", "#dialog")
    page.click_text("Close", "#dialog a")
    assert three.consumed("other") == names(*(it for it in range(COUNT) if it % 4))


def test_a_row_opens_wherever_it_is_clicked_and_nothing_can_be_done_before_something_is_selected(page: Browser) -> None:
    page.look(width=1300)
    page.open(TAB)
    disabled = "return [...document.querySelectorAll('button[data-needs-pick]')].map((it) => it.disabled)"
    assert set(page.run(disabled)) == {True}
    page.click("#messages tbody tr td.preview")
    page.wait_for_text("Deferred message", "#detail h2")
    # The detail lies beside the table, not below its header.
    table, detail = page.run(
        "return ['.browser .scroll', '#detail'].map((it) => document.querySelector(it).getBoundingClientRect().toJSON())"
    )
    assert table["right"] <= detail["left"]
    assert page.run("return document.documentElement.scrollWidth") <= 1300
    page.click("#messages input[name=pick]")
    assert set(page.run(disabled)) == {False}
    page.click("#messages input[name=pick]")
    assert set(page.run(disabled)) == {True}


def test_a_search_goes_on_in_the_same_table_and_keeps_its_matches(page: Browser, three: Three) -> None:
    count = sum(three.deferred())  # other tests take some
    page.open(f"{TAB}&filter=name&limit=20")
    page.wait_for_text("20 matches", "#hits")
    pressed = "const it = document.querySelector('#go-on'); it.click(); return it.textContent"
    assert page.run(pressed) == "Stop"
    page.wait("document.querySelectorAll('#messages tr[data-row]').length === arguments[0]", count)
    page.wait_for_text(f"{count} matches", "#hits")
    page.wait("!document.querySelector('#go-on')")
    picks = "return new Set([...document.querySelectorAll('input[name=pick]')].map((it) => it.value)).size"
    assert page.run(picks) == count
    assert page.run("return location.search.includes('after')") is False
