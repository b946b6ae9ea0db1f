"""The page's paths, without a browser: who sees what, what is not sent again, and that all text is only text."""

import hashlib
import re
from importlib.resources import files

import httpx2
import pytest

from jobs.batch.record import Batch
from jobs.client import Client
from jobs.http.page.static_files import read_files
from jobs.lease import Leases, Waiting
from tests.jobs.batch.shots import shots
from tests.jobs.http.rendering import PNG, Render
from tests.jobs.http.serving import ADA, OPERATOR, serving

PAGE = files("jobs.http.page")
HOSTILE = '"><script>alert(1)</script> \u202e\u0007 <img src=x onerror=alert(1)>'


def submit(client: httpx2.Client, prompt: str = "a red kite") -> str:
    answer = client.post("/renders", data={"prompt": prompt})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?done=queued"), answer.text
    return client.get("/v1/videos").json()["data"][0]["id"]


def test_who_has_not_signed_in_is_led_there(service):
    with service.client(None) as nobody:
        for path in ("/", "/live", "/batches/any"):
            answer = nobody.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert nobody.post("/renders", data={"prompt": "x"}).headers["location"] == "/login"
        assert "Token" in nobody.get("/login").text


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b'{"token": "%s"}' % ADA.encode(), "application/json", 415),
        (b"token=" + ADA.encode(), "text/plain", 415),
        (b"token=" + ADA.encode(), "", 415),
        (b"token=" + b"x" * 10_000, FORM, 413),
        (iter([b"&" * 5000] * 2), FORM, 413),  # without a Content-Length
        (b"token=" + b"x" * 2000, FORM, 400),
        (b"a=1&" * 10 + b"token=" + ADA.encode(), FORM, 400),
        (b"token=" + ADA.encode(), FORM, 303),
    ],
)
def test_of_who_signs_in_only_a_small_form_is_read(service, content, media_type, status):
    with service.client(None) as nobody:
        answer = nobody.post("/login", content=content, headers={"Content-Type": media_type})
        assert (answer.status_code, "h3render" in answer.cookies) == (status, status == 303)


def test_no_file_is_read_to_sign_somebody_in(service):
    with service.client(None) as nobody:
        assert nobody.post("/login", files={"token": ("token", ADA.encode())}).status_code == 400
        assert nobody.post("/login", files={"token": (None, ADA)}).status_code == 303


def die(redis, job_id: str) -> None:
    """As a job that has used up its attempts."""
    lease = Leases(redis).claim(Waiting(job_id, "default", "", b"", 0.0), "gpu-1")
    for _ in range(3):
        assert lease is not None
        lease.hand_back("fatal", "a rank died")
        lease = Leases(redis).claim(Waiting(job_id, "default", "", b"", 0.0), "gpu-1")
    assert lease is None


def test_one_that_gave_up_is_tried_again_and_whoever_may_not_is_told_on_the_page(redis, ada):
    dead = submit(ada, "one that dies")
    die(redis, dead)
    assert "Try again" in ada.get("/").text
    for number in range(3):
        submit(ada, f"open {number}")
    refused = ada.post(f"/renders/{dead}/retry")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert re.search(r'id="note" class="note bad" *>[^<]*ada has 3 renders', refused.text), refused.text[:2000]
    assert f"job-{dead}" in refused.text, "the page is there as ever"
    ada.post(f"/renders/{submitted(ada)[0]}/cancel")
    assert ada.post(f"/renders/{dead}/retry").headers["location"] == "/?done=retried"
    assert ada.post(f"/renders/{dead}/retry").headers["location"] == "/?done=ended"


def test_who_submits_and_retries_too_often_is_told_on_the_page(redis, redis_url, tmp_path):
    with serving(redis_url, tmp_path, submit_limit="2/hour") as service, service.client(ADA) as ada:
        dead = submit(ada)
        die(redis, dead)
        assert ada.post(f"/renders/{dead}/retry").status_code == 303
        for refused in (ada.post(f"/renders/{dead}/retry"), ada.post("/renders", data={"prompt": "x"})):
            assert (refused.status_code, "submits than 2 per 1 hour" in refused.text) == (429, True)
            assert int(refused.headers["retry-after"]) > 0
            assert 'id="live"' in refused.text


def submitted(client: httpx2.Client) -> list[str]:
    return [video["id"] for video in client.get("/v1/videos").json()["data"]]


def test_what_runs_and_what_is_finished_is_seen_behind_a_long_queue(redis, redis_url, tmp_path):
    with serving(redis_url, tmp_path, submit_limit="1000/minute") as service, service.client(ADA) as ada:
        finished, running = (submit(ada, prompt) for prompt in ("finished", "running"))
        Render(redis, service.store, finished).finish()
        Render(redis, service.store, running).step(1)
        waiting = [submit(ada, f"waiting {number}") for number in range(99)]
        page = ada.get("/").text
        assert [find_section(page, job_id) for job_id in (running, finished)] == ["now", "gallery"]
        assert "<b>1</b> running" in page
        assert "<b>99</b> waiting" in page
        assert find_section(page, waiting[0]) == "waiting", "the next ones are shown"
        assert "and 69 more" in page


def test_what_is_finished_is_seen_behind_many_that_were_canceled_but_not_without_end(redis, redis_url, tmp_path):
    with serving(redis_url, tmp_path, submit_limit="1000/minute") as service, service.client(ADA) as ada:
        finished = submit(ada, "finished")
        Render(redis, service.store, finished).finish()
        for _ in range(100):
            ada.post(f"/renders/{submit(ada)}/cancel")
        assert find_section(ada.get("/").text, finished) == "gallery"
        last_week = {f"gone-{number}": 10**15 + number for number in range(5000)}
        redis.zadd("h3:submitted:ada", last_week)
        calls = redis.info("commandstats")["cmdstat_hmget"]["calls"]
        assert finished in ada.get("/live?shown=48").text
        assert redis.info("commandstats")["cmdstat_hmget"]["calls"] - calls < 1500


def find_section(page: str, job_id: str) -> str:
    """Where on the page its card is."""
    return re.findall(r'<section class="section" id="(\w+)"', page.partition(f'id="job-{job_id}"')[0])[-1]


def test_while_redis_is_away_all_say_when_to_come_again(redis_server, tmp_path):
    with serving(redis_server.url, tmp_path) as service, service.client(OPERATOR) as client:
        redis_server.kill()
        for method, path in (
            ("GET", "/"),
            ("GET", "/live"),
            ("GET", "/?again=x"),
            ("GET", "/batches/any"),
            ("GET", "/batches/any/live"),
            ("POST", "/renders"),
            ("POST", "/renders/x/cancel"),
            ("POST", "/renders/x/retry"),
            ("POST", "/batches/any/cancel"),
        ):
            answer = client.request(method, path, data={"prompt": "x"} if path == "/renders" else None)
            assert (path, answer.status_code, answer.headers.get("retry-after")) == (path, 503, "2")


def test_others_renders_are_not_seen_repeated_canceled_or_deleted(ada, bob, operator):
    job_id = submit(ada, "a secret of ada")
    assert "a secret of ada" in ada.get("/").text
    assert "a secret of ada" in operator.get("/").text
    for path in ("/", f"/?again={job_id}", "/live"):
        assert "a secret of ada" not in bob.get(path).text
    for deed in ("cancel", "delete", "retry"):
        assert bob.post(f"/renders/{job_id}/{deed}").status_code == 404
    assert ada.post(f"/renders/{job_id}/cancel").headers["location"] == "/?done=canceled"
    assert f"job-{job_id}" not in ada.get("/live").text


def test_batches_are_for_operators(redis, ada, operator):
    batch = Batch(redis, "trailer")
    list(batch.queue(batch.plan(shots("one", "two")), Client(redis)))
    assert "trailer" in operator.get("/").text
    assert operator.get("/batches/trailer").status_code == 200
    assert "trailer" not in ada.get("/").text
    for path in ("/batches/trailer", "/batches/trailer/live"):
        assert ada.get(path).status_code == 404
    assert ada.post("/batches/trailer/cancel").status_code == 404
    assert operator.get("/batches/none").status_code == 404
    assert operator.get("/batches/a%20b").status_code == 400


def test_another_sites_page_sends_no_form(farm):
    with farm.client(None) as client:
        answer = client.post("/renders", data={"prompt": "x"}, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
        assert "another site" in answer.text
        assert client.get("/v1/videos").json()["data"] == []


def test_a_picture_of_the_form_is_stored_and_asked_for_again(service, ada):
    wanted = {"prompt": "a red kite"}
    refused = ada.post("/renders", data=wanted, files={"last_frame_file": ("x.png", b"no picture", "image/png")})
    assert refused.status_code == 422
    assert 'id="last_frame-error"' in refused.text
    empty = ("", b"", "application/octet-stream")  # as browsers send a field in which nothing was chosen
    files = {"first_frame_file": ("kite.png", PNG, "image/png"), "last_frame_file": empty}
    assert ada.post("/renders", data=wanted, files=files).status_code == 303
    [job] = ada.get("/v1/videos").json()["data"]
    key = job["request"]["first_frame"]
    assert service.store.get(key) == PNG
    assert f'name="first_frame" value="{key}"' in ada.get(f"/?again={job['id']}").text
    assert (
        ada.post("/renders", data={**wanted, "first_frame": key}, files={"last_frame_file": empty}).status_code == 303
    )
    again = ada.get("/v1/videos").json()["data"][0]["request"]
    assert (again["first_frame"], again["last_frame"]) == (key, None)


def test_what_has_not_changed_is_not_sent_again(ada):
    first = ada.get("/live")
    known = {"If-None-Match": first.headers["etag"]}
    assert ada.get("/live", headers=known).status_code == 304
    submit(ada)
    assert ada.get("/live", headers=known).status_code == 200


def test_text_of_others_is_only_text(ada, operator):
    submit(ada, HOSTILE)
    for client in (ada, operator):
        text = client.get("/").text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "&lt;script&gt;" in text


def test_files_of_the_page_stay_with_the_browser(ada):
    page = ada.get("/").text
    for path in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        answer = ada.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    unnamed = ada.get("/static/page.css")
    assert unnamed.headers["cache-control"] == "no-cache"
    assert ada.get("/static/page.css", headers={"If-None-Match": unnamed.headers["etag"]}).status_code == 304
    for wrong in ("none.css", "../routes.py", "vendor/README.md", ""):
        assert ada.get(f"/static/{wrong}").status_code == 404


def test_vendored_files_are_those_that_their_page_names():
    told = re.findall(r"\| `([^`]+)` \|.*`([0-9a-f]{64})` \|", (PAGE / "static/vendor/README.md").read_text())
    assert len(told) == 2
    for name, sha256 in told:
        assert hashlib.sha256(read_files()[f"vendor/{name}"].content).hexdigest() == sha256


@pytest.mark.parametrize("name", sorted(entry.name for entry in (PAGE / "templates").iterdir()))
def test_templates_have_no_script_and_no_style_of_their_own(name):
    """Which the policy forbids."""
    text = (PAGE / "templates" / name).read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|https?://", text)
    assert "|safe" not in text.replace(" ", "")
