"""A channel stops itself: the overview says so, its page says why, and a person resumes it. What rules lose is red."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.conftest import prepared, shot, until
from tests.support.browser import Browser
from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd

POLICY = """
[[policy]]
channel = "mail"
max_attempts = 1
max_buried = 2

[[policy]]
channel = "fax"
max_messages = 3
overflow = "drop-oldest"

[[policy]]
topic = "letters"
max_messages = 2
dry_run = true
"""
WHY = "more than 2 messages are buried (max_buried)"


@pytest.fixture
def node(needs: None, tmp_path: Path) -> Iterator[Nsqd]:
    """Run a node whose channel mail has stopped itself, while messages wait there."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    with ExitStack() as stack:
        nsqd = stack.enter_context(Nsqd(tmp_path / "n1", "broadcast-address=127.0.0.1", f"policy-file={file}"))
        nsqd.post("/topic/create?topic=letters")
        for channel in ("mail", "fax"):
            nsqd.post(f"/channel/create?topic=letters&channel={channel}")
        nsqd.post("/mpub?topic=letters", b"\n".join(b"%d" % number for number in range(10)))
        client = stack.enter_context(nsqd.connect())
        client.subscribe("letters", "mail", ready=1)
        for _ in range(3):
            client.requeue(client.message())
        until(lambda: nsqd.channel("letters", "mail")["paused"], "the channel stops itself")
        until(lambda: nsqd.channel("letters", "fax").get("policy_counts"), "rules drop messages")
        yield nsqd


@pytest.fixture
def page(chromium: Browser, node: Nsqd) -> Iterator[Browser]:
    with Nsqadmin(f"nsqd-http-address={name_of(node)}", "sample-interval=500ms", PATIENT) as admin:
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
    shot(page, "policy-stopped")
    page.open("/topics/letters/mail?tab=policy")
    while "does not report its policy" in page.text("main"):  # within two seconds, on a busy machine
        page.open("/topics/letters/mail?tab=policy")
    assert "max_buried" in page.text("main")
    shot(page, "policy-tab")
    page.open("/topics/letters/mail")
    page.click_text("Unpause", "main .actions button")
    until(lambda: not node.channel("letters", "mail")["paused"], "it goes on")
    if scripts:
        page.wait("!document.querySelector('main .head').innerText.includes('itself')")


WIDTHS = (1400, 390)
FITS = "return document.documentElement.scrollWidth <= window.innerWidth"


def test_what_rules_lose_is_red_with_an_icon_and_a_word(page: Browser) -> None:
    for path in ("/topics/letters/fax", "/topics/letters"):
        page.open(path)
        row = '[data-live="policy-counts"] tbody tr'
        colour = f"return getComputedStyle(document.querySelector('{row} td:last-child')).color"
        for width in WIDTHS:
            page.look(width=width)
            assert "Oldest messages dropped: channel over its limit (overflow)" in page.text(row)
            assert page.text(f"{row} .state.problem") == "Lost"
            assert page.count(f"{row} .state.problem svg use[href='#i-problem']") == 1
            assert page.run(colour) == page.run(
                "const it = document.body.appendChild(document.createElement('p')); it.className = 'problem';"
                "const found = getComputedStyle(it).color; it.remove(); return found"
            )
            tried = page.run("return [...document.querySelectorAll('.state.muted')].map((it) => it.innerText)")
            assert ("Dry run" in tried) is (path == "/topics/letters")
            assert page.run(FITS)
            shot(page, f"policy-counts-{width}")


def test_a_refused_file_is_named_where_one_looks_and_fits_a_phone(page: Browser, node: Nsqd, tmp_path: Path) -> None:
    new = tmp_path / "new.toml"
    new.write_text(POLICY + "[[policy]]\nmax_atempts = 3\n")
    new.replace(tmp_path / "policy.toml")
    until(lambda: node.http("GET", "/config/policy").json["error"], "nsqd refuses the file")
    for path, said in (
        ("/topics/letters/mail?tab=policy&fresh=1", "new content refused"),
        (f"/nodes/{name_of(node)}?fresh=1", "refuses its policy file"),
    ):
        page.open(path)
        for width in WIDTHS:
            page.look(width=width)
            page.wait_for_text(said, "main")
            assert "max_atempts: unknown key" in page.text("main")
            assert page.run(FITS), path
            shot(page, f"policy-refused-{width}")
