"""What people do on the page: by mouse, by keyboard alone, on a phone, in the dark, without scripts."""

import re

import pytest
from playwright.sync_api import Page

from jobs.batch.record import Batch
from jobs.client import Client
from jobs.events import Canceled
from jobs.shots.file import read_shots
from jobs.workers import forget_worker, write_worker
from tests.browser import PHONE, browsing, shoot
from tests.jobs.http.page.film import CLIPS
from tests.jobs.http.serving import ADA, OPERATOR, serving
from tests.jobs.records import record
from tests.waiting import eventually

# Texts whose colour stands out from their ground by less than 4.5 to 1, or 3 to 1 where they are large.
PALE = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = numbers(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest(".unseen, .tag")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(numbers(style.color)), light(ground(element))].sort((one, other) => other - one);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5)) {
      found.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
    }
  }
  return found;
}"""
# What can be pressed, and is smaller than a finger.
SMALL = """() => [...document.querySelectorAll("a, button, summary, input, select, textarea")]
  .filter((element) => element.checkVisibility() && !element.closest(".unseen") && element.type !== "hidden")
  .map((element) => [element.textContent.trim().slice(0, 30) || element.id, element.getBoundingClientRect()])
  .filter(([, { width, height }]) => (width < 44 || height < 44) && width > 1)
  .map(([name, { width, height }]) => `${name}: ${width} x ${height}`)"""
UNLABELLED = """() => [...document.querySelectorAll("input, select, textarea")]
  .filter((field) => field.type !== "hidden" && !field.labels.length)
  .map((field) => field.name)"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def busy(redis, submit, claim, film) -> None:
    """A farm with something of everything."""
    write_worker(redis, record(redis, "gpu-2", reason="paused by a person", state="paused", nonce="1"))
    for number, prompt in enumerate(("a lighthouse in fog", "<b>rain</b> & a paper boat", "A" * 200)):
        done = claim(submit(prompt, width=[320, 192, 320][number], height=[192, 320, 192][number]))
        done.preview(10, film.preview(1.0))
        done.finish(film.whole)
    playable = claim(submit("a red kite climbs over a grey sea; wind, gulls, a child laughs far below the cliff"))
    playable.step(10)
    playable.preview(10, film.preview(1.0))
    playable.open_stream(len(CLIPS), film.header)
    playable.segment(film.segments[0], film.durations_s[0])
    denoising = claim(submit("a market square from dawn to dusk"))
    denoising.step(5)
    denoising.preview(5, film.preview(0.5))
    lost = submit("a storm that nobody will see")
    for _ in range(3):
        claim(lost).lease.hand_back("fatal", "rank 1 died with signal 9")
    for number in range(3):
        submit(f"waiting {number}")
    submit("waits for memory", width=1344, height=768, frames=362)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_and_pressed_on_a_phone_and_on_a_desk(browse, busy, scheme):
    page = browse(color_scheme=scheme)
    for name, size in (("desk", None), ("phone", PHONE)):
        if size:
            page.set_viewport_size(size)
        page.get_by_text("Parameters").first.click()
        page.locator("#submit summary").click()
        eventually(lambda: page.evaluate("[...document.images].every((image) => image.complete)"))
        assert page.evaluate(OVERFLOW) <= 0
        assert page.evaluate(SMALL) == []
        assert page.evaluate(PALE) == []
        shoot(page, f"farm-{name}-{scheme}")
    assert page.evaluate(UNLABELLED) == []


def test_an_empty_farm_says_how_to_begin(browse, redis):
    forget_worker(redis, "gpu-1-0a1b2c3d")
    page = browse()
    page.get_by_text("h3render worker --checkpoint").wait_for()
    shoot(page, "empty")


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(browse, redis):
    page = browse(expected=("response: 422",))
    page.get_by_label("Seconds").fill("99")
    page.get_by_text("Steps, seed").click()
    page.get_by_label("Seed").fill("seven")
    page.get_by_role("button", name="Render").click()
    page.get_by_text("Say what should be seen and heard.").wait_for()
    assert page.evaluate("document.activeElement.id") == "prompt"
    assert page.get_by_label("Seconds").input_value() == "99"
    assert "nearest: 15.08" in page.locator("#seconds-error").inner_text()
    assert page.get_by_label("Seconds").get_attribute("aria-describedby").startswith("seconds-error")
    assert page.get_by_label("Seed").get_attribute("aria-invalid") == "true"
    assert redis.llen("rq:queue:default") == 0
    shoot(page, "errors")


def test_jobs_that_wait_and_that_run_are_canceled(browse, redis, submit, claim):
    waiting, running = submit("one that waits"), submit("one that runs")
    redis.lrem("rq:queue:default", 0, waiting)
    redis.rpush("rq:queue:default", waiting)
    render = claim(running)
    page = browse()
    page.get_by_role("button", name="Cancel one that waits").click()
    page.get_by_text("Canceled.").first.wait_for()
    assert Client(redis).job(waiting).status().state == "canceled"
    card = page.locator(f"#job-{running}")
    card.locator("summary", has_text="Cancel").click()
    shoot(page, "cancel")
    card.get_by_role("button", name="Stop it").click()
    page.get_by_text("It stops between two steps.").first.wait_for()
    card.get_by_text("Stopping").first.wait_for()
    render.lease.cancel(Canceled(attempt=1))
    card.wait_for(state="detached")


def test_the_gallery_plays_asks_for_the_same_again_and_deletes(browse, redis, submit, claim, film):
    job_id = submit("a lighthouse in fog", width=768, height=768, seed=12345, steps=20)
    render = claim(job_id)
    render.preview(10, film.preview(1.0))
    render.finish(film.whole)
    page = browse()
    card = page.locator(f"#job-{job_id}")
    card.get_by_role("button", name="Play").click()
    eventually(lambda: page.locator("h3-player video").evaluate("video => video.currentTime > 0.2"))
    with page.expect_download() as download:
        card.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == film.whole
    page.get_by_label("Prompt").fill("something else")
    card.get_by_role("link", name="Same again").click()
    eventually(lambda: page.get_by_label("Prompt").input_value() == "a lighthouse in fog")
    fields = ("aspect", "short_side", "seconds", "steps", "seed")
    assert [page.locator(f"#{name}").input_value() for name in fields] == ["1:1", "768", "3.04", "20", "12345"]
    page.get_by_role("button", name="Render").click()
    page.locator("#waiting li").wait_for()
    again, before = (
        Client(redis).job(one).request() for one in (page.locator("#waiting li").get_attribute("data-job"), job_id)
    )
    assert again == before
    card.locator("summary", has_text="Delete").click()
    card.get_by_role("button", name="Delete it").click()
    page.get_by_text("Deleted.").first.wait_for()
    card.wait_for(state="detached")


def test_everything_is_done_by_keyboard_alone_and_the_focus_is_seen_and_kept(browse, redis, submit, claim, film):
    render = claim(submit("one that runs"))
    render.open_stream(len(CLIPS), film.header)
    for segment, duration_s in zip(film.segments, film.durations_s, strict=True):
        render.segment(segment, duration_s)
    page = browse()
    _tab_to(page, "Skip to the content")
    _tab_to(page, "prompt")
    page.keyboard.type("typed by hand")
    _tab_to(page, "Render")
    page.keyboard.press("Enter")
    page.locator("#waiting li").wait_for()
    _tab_to(page, "player")
    page.keyboard.press("Enter")
    eventually(lambda: page.locator("h3-player video").evaluate("video => video.currentTime > 0"))
    page.keyboard.press("Space")  # the video has the focus
    eventually(lambda: page.locator("h3-player video").evaluate("video => video.paused"))
    _tab_to(page, "Cancel one that runs")
    page.keyboard.press("Enter")
    render.step(3)  # the page changes, and what is open stays so
    page.get_by_text("Step 3 of 10").or_(page.get_by_text("Clip 4 of 4")).first.wait_for()
    _tab_to(page, "Stop it one that runs")
    shoot(page, "keyboard")
    page.keyboard.press("Enter")
    page.get_by_text("It stops between two steps.").first.wait_for()


def test_without_scripts_forms_and_links_do_the_same(browse, redis, submit, claim, film):
    render = claim(submit("a lighthouse in fog"))
    render.preview(10, film.preview(1.0))
    render.finish(film.whole)
    page = browse(java_script_enabled=False)
    page.get_by_label("Prompt").fill("a plain form")
    page.get_by_role("button", name="Render").click()
    page.get_by_text("Queued.").first.wait_for()
    page.get_by_role("button", name="Cancel a plain form").click()
    page.get_by_text("Canceled.").first.wait_for()
    page.get_by_role("link", name="Same again").click()
    assert page.get_by_label("Prompt").input_value() == "a lighthouse in fog"
    shoot(page, "without-scripts")


def test_a_batch_is_seen_whole_and_by_state(browse, redis, claim, film, tmp_path):
    file = tmp_path / "shots.csv"
    file.write_text("name,prompt,seconds\n" + "".join(f"shot {n},a red kite number {n},1\n" for n in range(6)))
    batch, client = Batch(redis, "trailer"), Client(redis)
    queued = [row.row for row in batch.queue(batch.plan(read_shots(file)), client)]
    for row in queued[:2]:
        render = claim(row.job_id, queue="batch")
        render.preview(10, film.preview(1.0))
        render.finish(film.whole)
    page = browse()
    page.get_by_role("link", name="trailer").click()
    page.get_by_text("2 of 6").first.wait_for()
    eventually(lambda: page.evaluate("[...document.images].every((image) => image.complete)"))
    shoot(page, "batch")
    page.get_by_role("link", name="finished 2").click()
    assert page.locator(".gallery > li").count() == 2
    page.get_by_text("Cancel the rest").click()
    page.get_by_role("button", name="Cancel them").click()
    page.get_by_text("6 of 6").first.wait_for()
    page.set_viewport_size(PHONE)
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(SMALL) == []


def test_a_farm_whose_redis_is_away_says_so_and_heals(chromium, redis_server, tmp_path):
    expected = ("503", "console")
    with (
        serving(redis_server.url, tmp_path, tokens_file=None) as service,
        browsing(chromium, service.url, expected=expected) as page,
    ):
        page.goto("/")
        page.get_by_label("Prompt").fill("half a tho")
        redis_server.kill()
        page.locator("#away").wait_for()
        shoot(page, "away")
        redis_server.start()
        page.locator("#away").wait_for(state="hidden")
        assert page.get_by_label("Prompt").input_value() == "half a tho"
        redis_server.kill()
        page.reload()
        page.get_by_text("The farm does not answer").first.wait_for()
        redis_server.start()
        page.get_by_text("Workers and queues").wait_for()


def test_who_has_a_token_signs_in_and_sees_their_own_renders(chromium, redis, redis_url, tmp_path):
    with (
        serving(redis_url, tmp_path) as service,
        service.client(ADA) as ada,
        service.client(OPERATOR) as operator,
        browsing(chromium, service.url, expected=("response: 403",)) as page,
    ):
        for client, prompt in ((ada, "mine"), (operator, "not mine")):
            client.post("/v1/videos", json={"prompt": prompt}).raise_for_status()
        page.goto("/")
        page.get_by_label("Token").fill("a guess that is long enough")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("not known").wait_for()
        shoot(page, "sign-in")
        page.get_by_label("Token").fill(ADA)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("ada").wait_for()
        assert page.locator("#waiting .prompt").all_inner_texts() == ["mine"]
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()


FOCUSED = """() => {
  let element = document.activeElement;
  const inPlayer = element.localName === "h3-player";
  if (inPlayer) element = element.shadowRoot.activeElement;
  const style = getComputedStyle(element);
  // Of a video's own controls the browser shows which has it.
  const isSeen = element.localName === "video" || style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [inPlayer ? "player" : element.id || element.innerText, isSeen];
}"""


def _tab_to(page: Page, name: str) -> None:
    """Press Tab until something has the focus; whatever has it on the way is seen to have it."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focused, is_seen = page.evaluate(FOCUSED)
        assert is_seen, f"nobody sees that {focused!r} has the focus"
        if re.sub(r"\s+", " ", focused.strip()) == name:
            return
    raise AssertionError(f"no Tab leads to {name!r}")
