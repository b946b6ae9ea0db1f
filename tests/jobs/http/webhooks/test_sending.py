"""One try: where it connects to, in whose name, and what it takes from a receiver."""

import asyncio
import socket
import ssl
import subprocess

import pytest

from jobs.http.webhooks.addresses import AddressPolicy
from jobs.http.webhooks.sending import Message, send
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.verdict import Answered, Refused, Unanswered
from tests.jobs.http.webhooks.receiver import ENDLESS_BYTES, Answer, running_receiver
from tests.jobs.http.webhooks.service import settings_for_loopback
from tests.servers import find_openssl, free_ports

MESSAGE = Message({"webhook-id": "evt_1"}, b"{}")
resolve_really = socket.getaddrinfo


def post(url, settings=None):
    return asyncio.run(send(url, MESSAGE, settings or settings_for_loopback()))


@pytest.fixture
def names(monkeypatch):
    """Names that lead to the addresses given, and to the next ones each time they are looked up."""
    names = {}

    def resolve(host, port, *arguments, **options):
        if host not in names:
            return resolve_really(host, port, *arguments, **options)
        addresses = names[host].pop(0)
        return [found for address in addresses for found in resolve_really(address, port, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["::1"]])
def test_a_name_that_leads_to_a_private_address_is_not_called(names, receiver, addresses):
    names["receiver.test"] = [addresses]
    outcome = post(f"http://receiver.test:{receiver.port}/", WebhookSettings(b"", AddressPolicy()))
    assert isinstance(outcome, Refused)
    assert "receiver.test leads to a private network" in str(outcome)
    assert receiver.calls == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/", "http://localhost:{}/", "http://127.1:{}/"])
def test_nor_is_a_private_address_itself(receiver, url):
    assert isinstance(post(url.format(receiver.port), WebhookSettings(b"", AddressPolicy())), Refused)
    assert receiver.calls == []


def test_the_connection_goes_to_the_address_that_was_judged(names, receiver):
    with running_receiver("127.0.0.2", receiver.port) as other:
        names["receiver.test"] = [["127.0.0.1"], ["127.0.0.2"]]
        assert post(f"http://receiver.test:{receiver.port}/hook?a=1") == Answered(200)
        assert other.calls == []
    assert names["receiver.test"] == [["127.0.0.2"]]
    [call] = receiver.calls
    assert (call.path, call.headers["host"]) == ("/hook?a=1", f"receiver.test:{receiver.port}")


def test_an_address_that_refuses_connections_is_passed_over(names, receiver):
    names["receiver.test"] = [["127.0.0.3", "127.0.0.1"]]
    assert post(f"http://receiver.test:{receiver.port}/") == Answered(200)


def test_proxies_of_the_environment_are_not_used(monkeypatch, receiver):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")
    assert post(receiver.url) == Answered(200)


def test_a_redirect_is_not_followed(receiver):
    receiver.answers = [Answer(302, {"location": f"{receiver.url}/elsewhere"})]
    assert post(f"{receiver.url}/hook") == Answered(302)
    assert receiver.paths == ["/hook"]


def test_a_big_answer_is_not_read(receiver):
    receiver.answers = [Answer(is_endless=True)]
    assert post(receiver.url) == Answered(200)
    assert receiver.has_sent.wait(10)
    assert receiver.sent_bytes < ENDLESS_BYTES / 16  # what fits into the buffers of two sockets


def test_a_receiver_that_says_nothing_is_left(receiver):
    receiver.is_open.clear()
    assert post(receiver.url, settings_for_loopback(timeout_s=0.2)) == Unanswered("no answer in 0.2 s")


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 64 + ".org"])
def test_a_name_that_is_not_found_is_no_answer(host):
    assert isinstance(post(f"http://{host}/"), Unanswered)


def test_what_cannot_be_called_is_refused_without_its_url():
    assert post("http://host:99999/?token=1") == Refused("its URL cannot be called")


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of receiver.test, signed by itself, with its key in the same file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [find_openssl(), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=DNS:receiver.test"]
    key = subprocess.run([*command, "-keyout", "-", "-out", file], check=True, capture_output=True).stdout
    file.write_bytes(file.read_bytes() + key)
    return file


@pytest.fixture
def tls_receiver(certificate):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    with running_receiver(tls=tls) as receiver:
        yield receiver


@pytest.fixture
def trusting(certificate):
    return settings_for_loopback(tls=ssl.create_default_context(cafile=certificate))


def test_tls_is_verified_for_the_hosts_name(names, tls_receiver, trusting):
    names["receiver.test"] = [["127.0.0.1"]]
    assert post(f"https://receiver.test:{tls_receiver.port}/", trusting) == Answered(200)


def test_another_hosts_certificate_is_not_enough(names, tls_receiver, trusting):
    names["other.test"] = [["127.0.0.1"]]
    outcome = post(f"https://other.test:{tls_receiver.port}/", trusting)
    assert isinstance(outcome, Unanswered)
    assert "other.test" in str(outcome)
    assert tls_receiver.calls == []


def test_nor_is_one_that_nobody_vouches_for(names, tls_receiver):
    names["receiver.test"] = [["127.0.0.1"]]
    assert "self-signed certificate" in str(post(f"https://receiver.test:{tls_receiver.port}/"))
    assert tls_receiver.calls == []
