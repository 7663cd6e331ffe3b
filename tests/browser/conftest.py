"""The dashboard in a real browser: `make test-browser` and `make test-browser-core` alone collect these tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

WANTED = os.environ.get("TORCHRELAY_BROWSER_TESTS")
collect_ignore_glob = [] if WANTED else ["test_*.py"]

if WANTED:
    from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
    from support.served_dashboard import Served, ToldRun

    @pytest.fixture(scope="session")
    def browser() -> Iterator[Browser]:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if found is None:
            pytest.skip("no chromium on this machine: apt-get install chromium")
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # which a browser that root starts cannot have
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=found, args=sandbox)
            yield browser
            browser.close()

    @pytest.fixture
    def serve() -> Iterator[Callable[..., Served]]:
        served: list[Served] = []

        def start(runs: dict[str, ToldRun], token: str = "") -> Served:
            served.append(Served(runs, token))
            return served[-1]

        yield start
        for one in served:
            one.close()

    @pytest.fixture
    def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
        """Pages on which nothing may go wrong: no error, nothing refused by the policy, nothing loaded from elsewhere."""
        contexts: list[BrowserContext] = []
        wrong: list[str] = []

        def start(url: str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
            scheme = "dark" if dark else "light"
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC", locale="en-GB"
            )
            contexts.append(context)
            page = context.new_page()
            page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda e: wrong.append(str(e)))
            here = url.partition("#")[0]
            page.on("request", lambda r: None if r.url.startswith(here) else wrong.append(f"asks for {r.url}"))
            page.set_default_timeout(20_000)
            page.goto(url)
            page.locator("main h1").wait_for()
            return page

        yield start
        for context in contexts:
            context.close()
        assert wrong == []
