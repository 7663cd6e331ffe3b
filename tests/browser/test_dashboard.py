"""The dashboard as somebody meets it: what it says, how it is walked through, and who may do what."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect
from support import told_runs as t
from support.served_dashboard import ToldRun

from torchrelay.protocol import events as e

Serve = Callable[..., Any]
Open = Callable[..., Page]
RUN, LARGE = "7e70abbe", "b2f0c4d1"
TOKEN = "a-token-for-the-tests"
PICTURES = Path(os.environ.get("TORCHRELAY_BROWSER_TESTS", "")).absolute()
PHONE = 390


def picture(page: Page, name: str, height: int | None = None) -> None:
    """For docs/dashboard.md: the page from its top, or what is seen of it; with few colours, since the repository keeps it."""
    page.mouse.move(0, 0)
    tall = page.evaluate("document.documentElement.scrollHeight")
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": min(tall, height or tall)})
    page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )  # all is drawn anew
    data = page.screenshot(animations="disabled")
    page.set_viewport_size(size)
    with Image.open(io.BytesIO(data)) as taken:
        taken.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            PICTURES / f"{name}.png", optimize=True
        )


def wrong_for_everybody(page: Page) -> list[str]:
    """What axe finds: names, roles, contrast."""
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['help']}: {n['html'][:160]} {n['failureSummary'][:200]}" for v in found for n in v["nodes"]]


def fits(page: Page) -> bool:
    """Whether nothing is wider than the page."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_small_run_is_understood_at_a_glance(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({RUN: ToldRun(t.small_run())}).address)
    expect(page.locator("main h1")).to_have_text("Training is well; 1 thing left for you to do")
    expect(page.get_by_role("region", name="Left for you to do")).to_contain_text(
        f"torchrelay quarantine clear {t.GPU}"
    )
    figures = page.get_by_role("region", name="Figures")
    for text in (
        "Goodput83.8 %of all time since the start; 97.8 % since the first step",
        "Protectionprotected",
        "Steps347",
        "Spares1 of 2 ready",
        "Migrations2",
    ):
        expect(figures).to_contain_text(text)
    expect(page.get_by_role("button", name="Rank 3 (n0.w3) on n0: training")).to_have_text("3")
    expect(page.get_by_role("img", name="training stood still 2 times")).to_be_visible()
    expect(page.get_by_role("region", name="Quarantine")).to_contain_text("row “xid-94” of the fault policy")
    picture(page, "4-ranks")


def test_ranks_stand_by_node_and_by_gpu(serve: Serve, open_page: Open) -> None:
    uuids = {"n0": ("GPU-5f1c-9f0e", "GPU-77b0-1c2d"), "n1": ("GPU-0a3e-44d1", "GPU-c2d9-8e05")}
    used = {node: {f"{node}.w{place}": of[place // 2] for place in range(4)} for node, of in uuids.items()}
    told = [*t.begins(8, ("n0", "n1")), *((t.BEGAN_S + 20, e.DevicesUsed(node, gpus)) for node, gpus in used.items())]
    told += t.progress(20, 90, 0, 3.0, 8)
    page = open_page(serve({RUN: ToldRun(told)}).address)
    shared = page.get_by_role("group", name="node n1").get_by_role("group", name="GPU-0a3e-44d1")
    expect(shared.get_by_role("button")).to_have_text(["4", "5"])
    expect(page.get_by_role("button", name="Rank 7 (n1.w3) on n1, GPU-c2d9-8e05: training")).to_be_visible()
    page.get_by_role("button", name="Rank 3 ").hover()
    expect(page.get_by_role("region", name="Ranks")).to_contain_text("Rank 3 (n0.w3) on n0, GPU-77b0-1c2d: training")
    picture(page, "devices")


def test_pointing_at_a_rank_says_why_it_is_where_it_is(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({RUN: ToldRun(t.small_run())}).address)
    page.get_by_role("button", name="Rank 0 ").hover()
    ranks = page.get_by_role("region", name="Ranks")
    expect(ranks).to_contain_text("n0.s0 took it over: rank 0 (n0.w0) was killed by SIGKILL.")
    ranks.get_by_role("link", name="Why it moved").click()
    expect(page.locator("main h1")).to_have_text("Rank 0 was lost and replaced")


def test_the_story_of_a_migration_has_an_address_of_its_own(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({RUN: ToldRun(t.small_run())}).address + f"#/runs/{RUN}/migrations/m2")
    expect(page.locator("main h1")).to_have_text("Rank 2 moved")
    lines = page.locator("ol.timeline > li")
    expect(lines.first).to_contain_text("by the health watch on n0")
    expect(lines.last).to_contain_text("It is done")
    expect(page.get_by_text("Training stood still for 0.60 s.")).to_be_visible()
    picture(page, "story")
    page.get_by_role("link", name=f"← Back to run {RUN}").click()
    expect(page.get_by_role("region", name="Ranks")).to_be_visible()


def test_what_happens_is_seen_without_loading_the_page_again(serve: Serve, open_page: Open) -> None:
    run = ToldRun([*t.begins(), *t.progress(20, 59, 0, 3.0)], late_s=2.0)
    page = open_page(serve({RUN: run}).address)
    expect(page.locator("main h1")).to_have_text("All is well")
    killed = t.kill(60)
    run.tell(killed[:6])
    expect(page.locator("main h1")).to_have_text("Rank 0 is being replaced")
    expect(page.get_by_role("button", name="Rank 0 (n0.w0) on n0: lost")).to_be_visible()
    picture(page, "under-way", 900)
    run.tell(killed[6:])
    expect(page.locator("main h1")).to_have_text("All is well")
    expect(page.get_by_role("region", name="Migrations")).to_contain_text("Rank 0 was lost and replaced")
    run.end()
    expect(page.locator("main h1")).to_have_text("Finished")
    expect(page.locator("#link")).to_have_text("run is over")


def test_a_story_is_told_on_while_it_happens(serve: Serve, open_page: Open) -> None:
    killed = t.kill(60)
    run = ToldRun([*t.begins(), *killed[:6]])
    page = open_page(serve({RUN: run}).address + f"#/runs/{RUN}/migrations/m1")
    expect(page.locator("main h1")).to_have_text("Rank 0 is being replaced")
    run.tell(killed[6:])
    expect(page.locator("main h1")).to_have_text("Rank 0 was lost and replaced")


def test_ten_thousand_ranks_are_seen_at_once_and_the_one_that_is_lost_is_named(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({LARGE: ToldRun(t.large_run(hours=8.0), late_s=0.9)}).address)
    expect(page.locator("main h1")).to_have_text("Rank 7342 is being replaced")
    ranks = page.get_by_role("region", name="Ranks")
    expect(ranks).to_contain_text("9,999 waiting for a migration")
    expect(ranks).to_contain_text(
        "Rank 7342 (node-0917.w6) on node-0917: lost. Its process node-0917.w6 was killed by SIGKILL."
    )
    box = ranks.get_by_role("img").bounding_box()
    assert box is not None
    assert box["height"] < 900
    picture(page, "10000-ranks", 1750)


def test_the_picture_of_many_ranks_can_be_walked_through_with_keys(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({LARGE: ToldRun(t.large_run(hours=1.0))}).address)
    canvas = page.get_by_role("region", name="Ranks").get_by_role("img")
    expect(canvas).to_have_attribute("aria-label", "10000 ranks on 1250 nodes")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_attribute("aria-label", "Rank 2 on node-0000: waiting for a migration")
    page.keyboard.press("End")
    expect(page.locator(".rank-said")).to_contain_text("Rank 9999 on node-1249")


def test_all_of_it_can_be_done_by_keyboard(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({RUN: ToldRun(t.small_run())}).address)
    page.get_by_role("button", name="Rank 1 ").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("button", name="Rank 0 ").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="Rank 1 ")).to_be_focused()
    expect(page.locator(".rank-said")).to_contain_text("Rank 1 (n0.w1)")
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Rank 3 ")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Rank 2 moved")


def test_what_has_the_focus_keeps_it_while_news_come_in(serve: Serve, open_page: Open) -> None:
    run = ToldRun(t.small_run())
    page = open_page(serve({RUN: run}).address)
    link = page.get_by_role("link", name="Rank 2 moved")
    link.focus()
    run.tell(t.kill(150, "m3", 1, "n0.w1", "n0.s2"))
    expect(page.get_by_role("region", name="Migrations")).to_contain_text("Rank 1 was lost and replaced")
    expect(link).to_be_focused()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everybody_can_read_and_use_it(serve: Serve, open_page: Open, dark: bool) -> None:
    observed = t.bad_gpu(100, 3, gpu="GPU-7", outcome="observed")
    address = serve({RUN: ToldRun([*t.small_run(), *observed])}).address
    page = open_page(address, dark=dark)
    expect(page.get_by_role("region", name="What torchrelay would have done")).to_contain_text("would migrate")
    assert wrong_for_everybody(page) == []
    if dark:
        picture(page, "dark", 1000)
    story = open_page(address + f"#/runs/{RUN}/migrations/m1", dark=dark)
    story.locator("ol.timeline").wait_for()
    assert wrong_for_everybody(story) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("state", ["working", "notice", "act", "over"])
def test_every_state_of_a_job_can_be_read(serve: Serve, open_page: Open, state: str, dark: bool) -> None:
    told = {
        "working": t.kill(60)[:6],
        "notice": [(t.BEGAN_S + 60, e.Protection("unprotected", "no spare is ready"))],
        "act": [(t.BEGAN_S + 60, e.JobFinished(1, "rank 1 has failed"))],
        "over": [(t.BEGAN_S + 60, e.JobFinished(0, ""))],
    }[state]
    page = open_page(serve({RUN: ToldRun([*t.begins(), *told])}).address, dark=dark)
    expect(page.locator(f".headline.tone-{state}")).to_be_visible()
    assert wrong_for_everybody(page) == []


def test_on_a_phone_nothing_is_cut_off(serve: Serve, open_page: Open) -> None:
    address = serve({RUN: ToldRun(t.small_run()), LARGE: ToldRun(t.large_run(hours=2.0))}).address
    page = open_page(address, width=PHONE, height=844)
    expect(page.get_by_role("link", name="run b2f0c4d1")).to_be_visible()
    assert fits(page)
    for place in (f"#/runs/{RUN}", f"#/runs/{LARGE}", f"#/runs/{RUN}/migrations/m2"):
        page.goto(address + place)
        expect(page.locator("main h1")).not_to_have_text("Runs")
        page.locator(".card").first.wait_for()
        assert fits(page), place
    page.goto(address + f"#/runs/{RUN}")
    page.get_by_role("button", name="Rank 1 ").wait_for()
    picture(page, "phone", 1700)


def test_several_runs_are_listed_and_those_that_need_somebody_say_so(serve: Serve, open_page: Open) -> None:
    over = ToldRun([*t.begins(run_id="0ver0000"), (t.BEGAN_S + 60, e.JobFinished(0, ""))])
    page = open_page(serve({"0ver0000": over, RUN: ToldRun(t.small_run())}).address)
    expect(page.locator("main h1")).to_have_text("Runs")
    cards = page.locator(".runs > li")
    expect(cards.nth(0)).to_contain_text("1 thing to do")
    expect(cards.nth(1)).to_contain_text("Finished")
    assert wrong_for_everybody(page) == []
    cards.nth(0).get_by_role("link").click()
    expect(page.get_by_role("region", name="Ranks")).to_be_visible()


def test_without_a_token_nothing_can_be_asked_for(serve: Serve, open_page: Open) -> None:
    page = open_page(serve({RUN: ToldRun(t.small_run())}).address)
    page.get_by_role("button", name="Rank 1 ").hover()
    expect(page.locator(".rank-said")).to_contain_text("Rank 1")
    expect(page.get_by_role("button", name="Move rank 1…")).to_have_count(0)
    expect(page.get_by_role("button", name="Clear…")).to_have_count(0)
    expect(page.get_by_role("button", name="Enter token")).to_be_hidden()


def test_with_the_token_a_device_is_cleared_and_a_rank_moved(serve: Serve, open_page: Open) -> None:
    run = ToldRun(t.small_run(), actions=True)
    page = open_page(serve({RUN: run}, TOKEN).address)
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url))
    page.get_by_role("button", name="Clear…").click()
    page.get_by_role("textbox", name="Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Clear…").click()
    page.get_by_role("textbox", name="Why it may be used again").fill("new GPU")
    page.get_by_role("button", name="Clear it").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{t.GPU} may be used again")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rank 3 ").focus()
    page.get_by_role("button", name="Move rank 3…").click()
    page.get_by_role("textbox", name="Why").fill("fan")
    page.get_by_role("button", name="Move it").click()
    expect(page.get_by_role("dialog")).to_contain_text("migration m3 is under way")
    assert run.asked == [(t.GPU, "new GPU"), (3, "fan")]
    assert asked
    assert not any(TOKEN in url for url in asked)
    assert TOKEN not in page.evaluate("location.href + JSON.stringify({...localStorage, ...sessionStorage})")
