"""A real Chromium for tests: the system's, headless. What its console complains of fails the test."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",  # of containers it is small
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 15_000
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


def find_browser() -> Path:
    """The program that `H3_BROWSER` names, or the first of those that are known on PATH."""
    named = os.environ.get("H3_BROWSER")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise FileNotFoundError(f"no {named or 'Chromium'} on PATH: make browser, or name one in H3_BROWSER")
    return Path(found)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Ends with the block, and with this process. While it runs, this thread can start no event loop of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """What went wrong in a page: errors of its scripts, of its policy, and what could not be loaded."""

    expected: tuple[str, ...] = ()  # parts of those that the test causes
    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self._note(f"script: {error}"))
        page.on("requestfailed", self._miss)
        page.on("response", self._judge)

    def _hear(self, message: ConsoleMessage) -> None:
        # What could not be loaded is told once more by the request itself, with its reason.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self._note(f"console: {message.text}")

    def _miss(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # left by the page itself
            self._note(f"request: {request.method} {request.url}: {request.failure}")

    def _judge(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"response: {response.status} {response.request.method} {response.url}")

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.expected):
            self.found.append(text)


@contextmanager
def browsing(browser: Browser, url: str, *, expected: tuple[str, ...] = (), **options: object) -> Iterator[Page]:
    """A window without cookies; `goto` takes paths below `url`. Fails at its end if there was a complaint.

    expected  parts of complaints that the test causes
    options   of Playwright's new_context: viewport, color_scheme, java_script_enabled, ...
    """
    context = browser.new_context(base_url=url, **({"viewport": DESK} | options))
    context.set_default_timeout(TIMEOUT_MS)
    complaints = Complaints(expected)
    page = context.new_page()
    complaints.watch(page)
    try:
        yield page
    finally:
        context.close()
    assert not complaints.found, "\n".join(complaints.found)


def shoot(page: Page, name: str, *, full: bool = True) -> Path:
    """Keep a screenshot for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, full_page=full)
    return path
