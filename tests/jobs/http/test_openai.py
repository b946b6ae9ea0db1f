"""OpenAI's own Python client against the service."""

import threading

import openai
import pytest

from tests.jobs.http.rendering import PNG, VIDEO, Render
from tests.jobs.http.serving import ADA
from tests.jobs.leasing import rq_job
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # the paths stay ours

PROMPT = "a red kite over the sea"


@pytest.fixture
def videos(service):
    with openai.OpenAI(api_key=ADA, base_url=f"{service.url}/v1", max_retries=0) as client:
        yield client.videos


def test_a_video_is_created_and_told_as_it_will_be_rendered(videos):
    video = videos.create(prompt=PROMPT, model="minimax-h3", seconds="4", size="1280x720")
    assert (video.object, video.model, video.status, video.progress) == ("video", "minimax-h3", "queued", 0)
    assert (video.size, video.seconds, video.prompt) == ("1280x704", "4.458", PROMPT)
    assert videos.retrieve(video.id) == video


def test_what_only_h3_has_goes_beside_openais_fields(videos):
    extra = {"steps": 8, "seed": 7, "frames": 39, "width": 256, "height": 128}
    video = videos.create(prompt=PROMPT, extra_body=extra)
    assert {name: video.request[name] for name in extra} == extra


def test_a_picture_is_uploaded_as_the_first_frame(videos, service):
    video = videos.create(prompt=PROMPT, input_reference=("kite.png", PNG, "image/png"))
    assert service.store.get(video.request["first_frame"]) == PNG


def test_create_and_poll_waits_for_the_video_and_download_gets_it(videos, redis, service):
    def render():
        [job_id] = eventually(lambda: redis.lrange("rq:queue:default", 0, -1))
        Render(redis, service.store, job_id.decode()).finish()

    worker = threading.Thread(target=render)
    worker.start()
    video = videos.create_and_poll(prompt=PROMPT, poll_interval_ms=50)
    worker.join()
    assert (video.status, video.progress) == ("completed", 100)
    assert video.created_at <= video.completed_at
    assert videos.download_content(video.id).read() == VIDEO


def test_a_video_that_failed_says_why(videos, redis, service):
    video = videos.create(prompt=PROMPT)
    render = Render(redis, service.store, video.id)
    for _ in range(2):
        render.lease.hand_back("fatal", "rank 1 died")
        render = Render(redis, service.store, video.id)
    render.lease.hand_back("fatal", "rank 1 died again")
    told = videos.retrieve(video.id)
    assert (told.status, told.error.code) == ("failed", "dead")
    assert "rank 1 died again" in told.error.message


def test_a_list_goes_page_by_page(videos):
    ids = [videos.create(prompt=PROMPT).id for _ in range(3)]
    assert [video.id for video in videos.list(limit=1)] == ids[::-1]
    assert [video.id for video in videos.list(limit=2, order="asc")] == ids
    page = videos.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)


def test_a_list_can_be_deleted_while_it_is_read(videos):
    ids = [videos.create(prompt=PROMPT).id for _ in range(3)]
    deleted = []
    for video in videos.list(limit=1):
        videos.delete(video.id)
        deleted.append(video.id)
    assert deleted == ids[::-1]
    assert not videos.list().data


def test_a_deleted_video_is_gone_with_all_that_it_made(videos, redis, service):
    video = videos.create(prompt=PROMPT)
    Render(redis, service.store, video.id).finish()
    assert videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        videos.retrieve(video.id)
    assert not list(service.store.list(f"{video.id}/"))
    assert not videos.list().data


def test_a_queued_video_is_deleted_and_never_rendered(videos, redis):
    videos.delete(videos.create(prompt=PROMPT).id)
    assert not redis.llen("rq:queue:default")


def test_a_running_video_is_deleted_at_once_and_stops_when_it_can(videos, redis, service):
    video = videos.create(prompt=PROMPT)
    render = Render(redis, service.store, video.id)
    assert videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        videos.retrieve(video.id)
    assert redis.hget(f"rq:job:{video.id}", "h3_cancel") == b"1"
    assert render.lease.hand_back("drained", "stopped") == "canceled"


def test_a_video_that_was_deleted_while_it_ran_is_shown_to_nobody_though_it_finishes(videos, redis, service, operator):
    key = {"Idempotency-Key": "once"}
    video = videos.create(prompt=PROMPT, extra_headers=key)
    render = Render(redis, service.store, video.id)
    videos.delete(video.id)
    render.finish()
    assert operator.get("/v1/videos").json()["data"] == []
    assert video.id not in operator.get("/").text
    assert videos.create(prompt=PROMPT, extra_headers=key).id != video.id


def test_a_video_that_rqs_own_tools_have_canceled_can_be_deleted_and_makes_room(videos, redis):
    ids = [videos.create(prompt=PROMPT).id for _ in range(3)]
    for job_id in ids[:2]:
        rq_job(redis, job_id).cancel()
    videos.create(prompt=PROMPT)
    videos.delete(ids[0])
    assert ids[0] not in [video.id for video in videos.list()]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"size": "big"}, openai.BadRequestError, "write it like 1280x720"),
        ({"seconds": "soon"}, openai.BadRequestError, "seconds 'soon'"),
        ({"seconds": 99}, openai.BadRequestError, "nearest: 15.08"),
        ({"model": "sora-2"}, openai.BadRequestError, "minimax-h3 is"),
        ({"extra_body": {"frames": 40}}, openai.BadRequestError, "nearest: 39 and 56"),
        ({"extra_body": {"width": 100, "height": 64}}, openai.BadRequestError, "the nearest are 96 and 128"),
        ({"extra_body": {"step": 4}}, openai.BadRequestError, "did you mean steps"),
        ({"extra_body": {"fps": 30}}, openai.BadRequestError, "fps 30"),
        ({"extra_body": {"guidance_scale": 3}}, openai.BadRequestError, "is not a field"),
        ({"input_reference": ("a.txt", b"text", "text/plain")}, openai.BadRequestError, "none of JPEG"),
        ({"extra_body": {"first_frame": "http://host/a.png"}}, openai.BadRequestError, "send the file"),
        ({"extra_body": {"webhook": "https://example.org/x"}}, openai.BadRequestError, "no H3_WEBHOOK_SECRET"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_the_remedy_and_nothing_is_queued(videos, redis, fields, error, words):
    with pytest.raises(error, match=words):
        videos.create(**({"prompt": PROMPT} | fields))
    assert not redis.llen("rq:queue:default")
