"""A render is followed in a browser from the form to the gallery, and played while it is still decoded."""

from itertools import pairwise

from jobs.client import Client
from tests.browser import shoot
from tests.jobs.http.page.film import CLIPS
from tests.waiting import eventually

# Each picture that is shown, by its time in the video; and what the player says of itself.
RECORD = """player => {
  const video = player.shadowRoot.querySelector("video");
  window.shown = [];
  window.told = [];
  window.watched = video;
  const note = (now, { mediaTime }) => { window.shown.push(mediaTime); video.requestVideoFrameCallback(note); };
  video.requestVideoFrameCallback(note);
  for (const kind of ["play", "pause", "waiting", "seeking", "ended"]) {
    video.addEventListener(kind, () => window.told.push([kind, video.currentTime]));
  }
}"""
BUFFERED = """() => {
  const { buffered } = window.watched;
  return [...Array(buffered.length).keys()].map((index) => [buffered.start(index), buffered.end(index)]);
}"""

PLAYLIST, VIDEO = "**/hls/playlist.m3u8", "**/content"


def test_a_render_is_submitted_seen_growing_and_played_before_it_is_finished(browse, redis, claim, film):
    page = browse()
    page.get_by_label("Prompt").fill("a red kite over the sea")
    page.get_by_label("Seconds").fill("3")
    page.get_by_role("button", name="Render").click()
    page.get_by_text("Queued.").first.wait_for()
    waiting = page.locator("#waiting li")
    waiting.locator(".prompt", has_text="a red kite over the sea").wait_for()
    job_id = waiting.get_attribute("data-job")

    render = claim(job_id, steps=50)
    page.get_by_role("heading", name="a red kite over the sea").wait_for()
    for step in (5, 20):
        render.step(step)
        render.preview(step, film.preview(step / 50))
        page.get_by_alt_text(f"Preview after step {step}").wait_for()
        shoot(page, f"running-step-{step}")
    assert page.locator(f"#job-{job_id} progress").get_attribute("value") == "20"

    render.step(50)
    render.preview(50, film.preview(1.0))
    render.open_stream(len(CLIPS), film.header)
    render.segment(film.segments[0], film.durations_s[0])
    play = page.get_by_role("button", name="Play: a red kite over the sea")
    play.wait_for()
    assert page.locator("#said").inner_text() == "a red kite over the sea: can be played while the rest is made"
    shoot(page, "running-playable")
    page.locator("h3-player").evaluate(RECORD)
    play.click()
    eventually(lambda: page.evaluate("window.shown.length > 5"))
    kinds = [event.kind for event in Client(redis).job(job_id).news()]
    assert kinds[-1] == "segment_ready", "the first segment plays, and nothing has come after it"
    assert kinds.count("segment_ready") == 1

    for segment, duration_s in zip(film.segments[1:], film.durations_s[1:], strict=True):
        render.segment(segment, duration_s)
    eventually(lambda: page.evaluate("window.watched.currentTime > 1.5"))
    shoot(page, "running-played")
    render.finish(film.whole)
    page.locator(f"#gallery #job-{job_id}").wait_for()
    eventually(lambda: page.evaluate("window.told.some(([kind]) => kind == 'ended')"))
    assert page.evaluate("window.watched.isConnected"), "what is in the gallery is another player"
    assert page.evaluate("getComputedStyle(window.watched).display") == "block"
    assert [kind for kind, _ in page.evaluate("window.told")].count("pause") == 1, "it pauses at its end alone"
    shoot(page, "finished")


def test_a_stream_plays_through_the_borders_of_its_segments_without_a_gap(browse, submit, claim, film):
    """While it is not finished: by all pictures that are shown, what is buffered, and the clock."""
    render = claim(submit())
    render.open_stream(len(CLIPS), film.header)
    for segment, duration_s in zip(film.segments, film.durations_s, strict=True):
        render.segment(segment, duration_s)
    page = browse()
    page.locator("h3-player").evaluate(RECORD)
    page.get_by_role("button", name="Play").click()
    eventually(lambda: page.evaluate("window.watched.currentTime") > film.duration_s - 0.1)
    [[start, end]] = page.evaluate(BUFFERED)  # of picture and sound together
    assert start < 0.05
    assert abs(end - film.duration_s) < 0.1
    told = page.evaluate("window.told")
    begun = next(index for index, (kind, _) in enumerate(told) if kind == "play")
    assert [kind for kind, at in told[begun:] if kind in ("waiting", "seeking") and 0.1 < at < end - 0.2] == []
    shown = page.evaluate("window.shown")
    steps = [after - before for before, after in pairwise(shown)]
    assert max(steps) < 0.26, f"pictures are missing: {shown}"  # of 24 a second; a busy machine skips some
    assert min(steps) > 0, f"it went back: {shown}"
    assert page.evaluate("window.watched.webkitAudioDecodedByteCount") > 0


def test_a_stream_that_is_away_for_a_moment_goes_on(browse, submit, claim, film):
    """At the press of Play, and again in the middle."""
    render = claim(submit())
    render.open_stream(len(CLIPS), film.header)
    render.segment(film.segments[0], film.durations_s[0])
    page = browse(expected=("response: 404",))
    page.route(PLAYLIST, lambda route: route.fulfill(status=404))
    page.locator("h3-player").evaluate(RECORD)
    with page.expect_response(PLAYLIST):
        page.get_by_role("button", name="Play").click()
    page.unroute(PLAYLIST)
    eventually(lambda: page.evaluate("window.watched.currentTime > 0.2"))

    page.route(PLAYLIST, lambda route: route.fulfill(status=404))
    with page.expect_response(PLAYLIST):
        for segment, duration_s in zip(film.segments[1:], film.durations_s[1:], strict=True):
            render.segment(segment, duration_s)
    page.unroute(PLAYLIST)
    render.finish(film.whole)
    eventually(lambda: page.evaluate("window.told.some(([kind]) => kind == 'ended')"))
    assert page.evaluate("window.watched.currentTime") > film.duration_s - 0.1


def test_a_stream_that_begins_anew_is_played_from_there(browse, redis, submit, claim, film):
    """As of an attempt that can go on from nothing; between two looks of the page, so that its player stays."""
    job_id = submit()
    render = claim(job_id)
    render.open_stream(len(CLIPS), film.header)
    for segment, duration_s in zip(film.segments[:3], film.durations_s[:3], strict=True):
        render.segment(segment, duration_s)
    page = browse(expected=("response: 404",))
    page.locator("h3-player").evaluate(RECORD)
    page.get_by_role("button", name="Play").click()
    eventually(lambda: page.evaluate("window.watched.currentTime > 1"))

    page.route("**/live*", lambda route: route.fulfill(status=304))
    render.lease.hand_back("fatal", "a rank died")
    anew = claim(job_id)
    anew.open_stream(len(CLIPS), film.header)
    anew.segment(film.segments[0], film.durations_s[0])
    again = f"**/v1/videos/{job_id}/hls/2/segment-*"
    with page.expect_response(again):
        pass
    for segment, duration_s in zip(film.segments[1:], film.durations_s[1:], strict=True):
        anew.segment(segment, duration_s)
    anew.finish(film.whole)
    eventually(lambda: page.evaluate("window.told.some(([kind]) => kind == 'ended')"))
    assert page.evaluate("window.watched.currentTime") > film.duration_s - 0.1


def test_a_video_that_cannot_be_had_for_a_moment_may_be_tried_again(browse, submit, claim, film):
    render = claim(submit())
    render.preview(10, film.preview(1.0))
    render.finish(film.whole)
    page = browse(expected=("response: 503",))
    page.route(VIDEO, lambda route: route.fulfill(status=503))
    play = page.get_by_role("button", name="Play")
    play.click()
    page.get_by_text("Cannot be played").wait_for()
    assert page.locator("h3-player").evaluate("player => player.shadowRoot.activeElement?.localName") == "button"
    page.unroute(VIDEO)
    page.locator("h3-player").evaluate(RECORD)
    play.click()
    eventually(lambda: page.evaluate("window.watched.currentTime > 0.2"))
    assert page.get_by_text("Cannot be played").count() == 0
