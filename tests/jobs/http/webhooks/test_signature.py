"""What is signed is verified by the receivers' own library, and bodies are what it reads."""

import json
import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from jobs.errors import SettingsInvalid
from jobs.http.webhooks.notice import make_body, webhook_id
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.signature import parse_secret, sign
from tests.jobs.http.webhooks.service import SECRET

VIDEO = {"id": "7", "object": "video", "status": "completed", "prompt": "ein Drachen über dem Meer"}


@pytest.fixture(scope="module")
def webhooks():
    with OpenAI(api_key="none", webhook_secret=SECRET) as client:
        yield client.webhooks


def test_the_signature_is_that_of_the_specifications_example():
    headers = sign(parse_secret(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_openais_library_verifies_and_reads_an_event(webhooks):
    body = make_body("evt_1", "7", "finished", 1_700_000_000, VIDEO)
    headers = sign(parse_secret(SECRET), "evt_1", int(time.time()), body)
    event = webhooks.unwrap(body, headers)
    assert (event.id, event.type, event.created_at) == ("evt_1", "video.completed", 1_700_000_000)
    assert event.data.id == "7"
    with pytest.raises(InvalidWebhookSignatureError):
        webhooks.verify_signature(body + b" ", headers)


@pytest.mark.parametrize("outcome", ["failed", "dead", "canceled", ""])
def test_what_is_not_completed_has_failed_whatever_became_of_it_since(outcome):
    assert json.loads(make_body("evt_1", "7", outcome, 1, VIDEO))["type"] == "video.failed"


def test_of_a_job_that_is_gone_the_id_is_told_and_how_it_ended():
    told = json.loads(make_body("evt_1", "7", "finished", 1, None))
    assert (told["type"], told["data"]) == ("video.completed", {"id": "7"})


def test_ids_differ_by_job_and_by_end_and_are_kept():
    ids = [webhook_id(entry, job_id) for entry, job_id in [("1-0", "a"), ("1-0", "b"), ("2-0", "a"), ("1-0", "a")]]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]
    assert "." not in ids[0]


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_short", "whsec_" + "!" * 32, SECRET.removeprefix("whsec_")])
def test_a_secret_that_does_not_do_is_refused_with_a_way_to_make_one(text):
    with pytest.raises(SettingsInvalid, match="openssl rand -base64 32") as refused:
        parse_secret(text)
    assert len(text) < 7 or text not in str(refused.value)


def test_settings_do_not_show_the_secret():
    settings = WebhookSettings(parse_secret(SECRET))
    assert repr(settings.secret) not in repr(settings)
