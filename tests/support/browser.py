"""Debian's chromium, headless, and what tests do with it. Only this module knows Selenium.

Needs the packages chromium and chromium-driver: `need("browser")`. Uses chromium-headless-shell if it is there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

LIMIT: Final = 30.0  # seconds that anything on a page may take on a busy machine
# The shell is the same engine without the windows around pages, which took a quarter of the processor time.
SHELL: Final = shutil.which("chromium-headless-shell")
CHROMIUM: Final = SHELL or shutil.which("chromium")
CHROMEDRIVER: Final = shutil.which("chromedriver")

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    # Half of a page's processor time went to a new process for each page, because the one before was kept for the
    # button "back", and to processes for pages and programs to come.
    "--no-zygote",
    "--in-process-gpu",
    "--disable-breakpad",
    "--disable-field-trial-config",
    # A new frame in the browser for each document, although its site is the same, was a quarter of the rest.
    "--disable-features=BackForwardCache,MediaRouter,OptimizationHints,RenderDocument,SpareRendererForSitePerProcess,"
    "Translate",
    # V8 collects and compiles on one thread, and less often: pages live for a second.
    "--js-flags=--single-threaded --min-semi-space-size=16",
    # Only this machine can be reached: a request of a page to anything else fails, and the test sees it. evil.test is a
    # stranger's name that points here.
    "--host-resolver-rules=MAP evil.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Browser:
    """One browser with one page."""

    def __init__(self, driver: Any, base: str = "") -> None:
        self._driver = driver
        self.base = base
        self._looks: dict[str, Mapping[str, object]] = {}  # how it looks now, by the command that has said so
        self._runs_scripts = True
        self._has_left = True
        self.may_stay = False  # the page that is open asks for nothing by itself
        self.good_kinds: set[str] = set()  # kinds of elements in which a test has found nothing wrong

    # Navigation

    def open(self, path: str = "/") -> None:
        """Load a path of `base`, and wait until its scripts have run."""
        self._has_left = self.may_stay = False
        self._driver.get(self.base + path)

    def leave(self) -> None:
        """Open what costs least, so that the page before asks for nothing more. A page of no site takes a new process."""
        if not self._has_left:
            self.open("/ping")
            self._has_left = True

    def hide(self) -> None:
        """Show nothing of the page, which would be laid out again when the next test changes the size of the window."""
        self.run("document.documentElement.style.display = 'none'")

    def forget(self) -> None:
        """Clear what pages have stored."""
        self.command("Storage.clearDataForOrigin", {"origin": self.base, "storageTypes": "local_storage"})

    @property
    def path(self) -> str:
        """Return the path of the page, with the query."""
        url: str = self._driver.current_url
        return url.removeprefix(self.base)

    @property
    def title(self) -> str:
        return str(self._driver.title)

    @property
    def source(self) -> str:
        return str(self._driver.page_source)

    # What the page shows

    def run(self, script: str, *arguments: object) -> Any:
        """Run the body of a function in the page, and return its result. If it returns a promise, await that."""
        return self._driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        """Return the element's text, or "" if there is no such element."""
        found: str = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return found

    def count(self, selector: str) -> int:
        found: int = self.run("return document.querySelectorAll(arguments[0]).length", selector)
        return found

    def counts(self, *selectors: str) -> list[int]:
        """Count by several selectors at once, as each command takes 5 ms of processor time."""
        found: list[int] = self.run("return arguments[0].map((it) => document.querySelectorAll(it).length)", selectors)
        return found

    def wait(self, script: str, *arguments: object) -> Any:
        """Wait until the expression is true, and return its value. If it never is, fail with what the page shows."""
        deadline = time.monotonic() + LIMIT
        pause = 0.02
        while True:
            if value := self.run(f"return {script}", *arguments):
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"never true on {self.path}: {script}\n{self.text()[:3000]}")
            time.sleep(pause)
            pause = min(0.1, 1.5 * pause)  # each look takes 10 ms of processor time

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        self.wait("document.querySelector(arguments[0])?.innerText.includes(arguments[1])", selector, text)

    # What a user does

    def click(self, selector: str) -> None:
        self._click(lambda: self._element(selector))

    def click_text(self, text: str, selector: str = "a, button, summary") -> None:
        """Click the first visible element that has this text."""
        self._click(
            lambda: self.wait(
                "[...document.querySelectorAll(arguments[0])].find("
                "(it) => it.innerText.trim().startsWith(arguments[1]) && it.getClientRects().length)",
                selector,
                text,
            )
        )

    def _click(self, find: Callable[[], Any]) -> None:
        """Click what is found, and if the page replaces it at that very moment, what stands there then."""
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + LIMIT
        while True:
            try:
                find().click()
            except StaleElementReferenceException:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def fill(self, selector: str, text: str) -> None:
        element = self._element(selector)
        element.clear()
        element.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys as Selenium names them, or letters. Control is held if the first key is "ctrl"."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self._driver)
        names = {"enter": Keys.ENTER, "escape": Keys.ESCAPE, "tab": Keys.TAB, "down": Keys.ARROW_DOWN}
        if keys[0] == "ctrl":
            chain.key_down(Keys.CONTROL).send_keys(*keys[1:]).key_up(Keys.CONTROL)
        else:
            chain.send_keys(*(names.get(key, key) for key in keys))
        chain.perform()

    def _element(self, selector: str) -> Any:
        return self.wait("document.querySelector(arguments[0])", selector)

    # Appearance

    def command(self, name: str, arguments: Mapping[str, object]) -> Any:
        """Send a command of the DevTools protocol."""
        self._looks.pop(name, None)
        return self._driver.execute_cdp_cmd(name, dict(arguments))

    def look(self, *, width: int = 1400, height: int = 900, scheme: str = "light", still: bool = True) -> None:
        """Set the size of the window, the system's colour scheme, and whether it reduces motion."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        wanted: dict[str, Mapping[str, object]] = {
            "Emulation.setDeviceMetricsOverride": metrics,
            "Emulation.setEmulatedMedia": {"features": features},
        }
        for name, arguments in wanted.items():
            if self._looks.get(name) != arguments:
                self.command(name, arguments)
                self._looks[name] = arguments

    def allow_scripts(self, allowed: bool) -> None:
        """Allow or forbid scripts in pages loaded from now on. Scripts that a test runs in the page still work."""
        if allowed != self._runs_scripts:
            self.command("Emulation.setScriptExecutionDisabled", {"value": not allowed})
            self._runs_scripts = allowed

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the whole page."""
        import base64

        size = self.command("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        shot = self.command("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    # What went wrong

    def complaints(self) -> list[str]:
        """Return new messages of the console: errors of scripts, refused requests, the security policy."""
        return [f"{entry['level']}: {entry['message']}" for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return all URLs that were requested since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        return [it["params"]["request"]["url"] for it in events if it["method"] == "Network.requestWillBeSent"]


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser. `profile` is an empty folder for its files."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    if SHELL:
        options.set_capability("browserName", "chrome-headless-shell")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=CHROMEDRIVER))
    driver.set_page_load_timeout(LIMIT)
    driver.set_script_timeout(LIMIT)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
