"""The page's paths, without a browser: who sees what, what is not sent again, and that all text is only text."""

import hashlib
import re
from importlib.resources import files

import httpx2
import pytest

from jobs.batch.record import Batch
from jobs.client import Client
from jobs.http.page.static_files import read_files
from tests.jobs.batch.shots import shots
from tests.jobs.http.rendering import PNG

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
