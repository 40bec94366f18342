"""From a message that fails to its second chance, on the pages: seen, looked into, kicked at a rate, handled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import prepared, shot, until
from tests.browser.test_pages import fits_and_is_accessible
from tests.nsqadmin.whole.test_buried import COUNT, TAB, Two, buried, bury, two_nodes
from tests.support.browser import Browser
from tests.support.process import eventually


@pytest.fixture(scope="module")
def two(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with two_nodes(tmp_path_factory.mktemp("two")) as it:
        yield it


@pytest.fixture
def page(chromium: Browser, two: Two) -> Iterator[Browser]:
    yield from prepared(chromium, two.admin)


@pytest.fixture
def topic(two: Two, request: pytest.FixtureRequest) -> str:
    """Return a topic of the test's own, in which each node has buried 30 messages. Tests that only look share t."""
    name = str(request.node.name)
    for node in two.nodes:
        bury(node, name)

    def shows(path: str, text: str) -> bool:
        return text in two.admin.http("GET", path).body.decode()  # it is 404 until a sample has the topic

    eventually(lambda: shows(f"/topics/{name}/c", f"{2 * COUNT}</"))
    eventually(lambda: shows(f"/actions/kick_buried?topic={name}&channel=c", "No consumer is connected there"))
    return name


def test_the_tab_can_be_read(page: Browser) -> None:
    page.open(TAB)
    fits_and_is_accessible(page, "buried", narrow=390)


def test_it_works_without_scripts(page: Browser) -> None:
    page.allow_scripts(False)
    page.open(TAB)
    page.click_text("Kick all…")
    page.wait_for_text("No consumer is connected there")


def test_selected_messages_are_kicked_and_taken_back(page: Browser, two: Two, topic: str) -> None:
    page.open(f"/topics/{topic}/c?tab=buried")
    page.wait_for_text("1 attempts, the last one requeued", "main")
    page.run("for (const box of [...document.querySelectorAll('input[name=pick]')].slice(0, 2)) box.click()")
    page.click_text("Kick selected…")
    page.wait_for_text("Undo buries again those that no consumer has received", "#dialog")
    page.click("#dialog button.primary")
    page.wait_for_text("2 messages kicked", "#dialog")
    page.click_text("Undo the kick", "#dialog button")
    page.wait_for_text("2 messages buried again", "#dialog")
    page.click_text("Close", "#dialog a")
    until(lambda: buried(two, topic) == [COUNT, COUNT], "all are buried")


def test_from_failing_to_handled(page: Browser, two: Two, topic: str) -> None:
    page.open(f"/topics/{topic}/c")
    page.wait_for_text(f"{2 * COUNT}", "nav.tabs")
    page.click_text("Buried", "nav.tabs a")
    page.wait_for_text("1 attempts, the last one requeued", "main")
    page.run("document.querySelector('#messages tbody a[data-detail]').click()")
    page.wait_for_text("<script>alert(1)</script>", "#detail pre")
    page.click_text("Kick all…")
    page.wait_for_text("No consumer is connected there", "#dialog")
    page.fill("#rate", "1")  # so slow that it is seen while it runs
    shot(page, "buried-kick")
    page.click("#dialog button.primary")
    page.wait_for_text("Running:", "#dialog")
    page.click_text("Close", "#dialog a")
    page.wait_for_text(f"of {COUNT}", "[data-hurries]")
    shot(page, "buried-progress")
    two.post("/actions/stop_buried", f"topic={topic}&channel=c")
    two.post("/actions/kick_buried", f"topic={topic}&channel=c&rate=")
    for node in two.nodes:
        client = node.connect()
        client.subscribe(topic, "c", ready=COUNT)
        client.finish(*client.messages(COUNT))
    page.wait_for_text("Nothing is buried here", "main")
    until(lambda: [node.channel(topic)["depth"] for node in two.nodes] == [0, 0], "all are finished")


def test_the_plan_of_a_kick_follows_what_is_typed(page: Browser) -> None:
    page.open(TAB)
    page.click_text("Kick all…")
    page.wait_for_text("At most 1,000 a second", "#dialog")
    page.fill("#rate", "2")
    page.wait_for_text("At most 2 a second", "#dialog")
    page.fill("#most", "1")
    page.wait_for_text("Kick 1 buried message", "#dialog h1")
    page.run("document.querySelector('#dialog').close()")
