"""A channel stops itself: the overview says so, its page says why, and a person resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.conftest import ARTEFACTS, prepared, until
from tests.support.browser import Browser
from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd

pytestmark = pytest.mark.e2e

WHY = "more than 2 messages are buried (max_buried)"


@pytest.fixture
def node(needs: None, tmp_path: Path) -> Iterator[Nsqd]:
    """Run a node whose channel mail has stopped itself, while messages wait there."""
    file = tmp_path / "policy.toml"
    file.write_text('[[policy]]\nchannel = "mail"\nmax_attempts = 1\nmax_buried = 2\n')
    with ExitStack() as stack:
        nsqd = stack.enter_context(Nsqd(tmp_path / "n1", "broadcast-address=127.0.0.1", f"policy-file={file}"))
        nsqd.post("/topic/create?topic=letters")
        nsqd.post("/channel/create?topic=letters&channel=mail")
        nsqd.post("/mpub?topic=letters", b"\n".join(b"%d" % number for number in range(10)))
        client = stack.enter_context(nsqd.connect())
        client.subscribe("letters", "mail", ready=1)
        for _ in range(3):
            client.requeue(client.message())
        until(lambda: nsqd.channel("letters", "mail")["paused"], "the channel stops itself")
        yield nsqd


@pytest.fixture
def page(chromium: Browser, node: Nsqd) -> Iterator[Browser]:
    with Nsqadmin(f"nsqd-http-address={name_of(node)}", "sample-interval=500ms") as admin:
        until(lambda: b"paused itself" in admin.http("GET", "/").body, "nsqadmin finds it")
        yield from prepared(chromium, admin)
        assert "Traceback" not in admin.log


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_a_channel_that_has_stopped_itself_says_why_and_is_resumed(page: Browser, node: Nsqd, scripts: bool) -> None:
    page.allow_scripts(scripts)
    page.open("/")
    assert f"letters/mail · It has paused itself: {WHY}" in page.text("main")
    page.open("/topics/letters/mail")
    assert f"by the channel itself: {WHY}" in page.text("main .head")
    assert "kick or discard those that are buried" in page.text("main .findings")
    page.screenshot(ARTEFACTS / "policy-stopped.png")
    page.open("/topics/letters/mail?tab=policy")
    assert "max_buried" in page.text("main")
    page.screenshot(ARTEFACTS / "policy-tab.png")
    page.open("/topics/letters/mail")
    page.click_text("Unpause", "main .actions button")
    until(lambda: not node.channel("letters", "mail")["paused"], "it goes on")
    if scripts:
        page.wait("!document.querySelector('main .head').innerText.includes('itself')")
