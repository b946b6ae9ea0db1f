"""Where the key goes, and where not; what is sent once, and what again."""

import ssl
import subprocess
import traceback
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from infra.clock import Clock
from infra.errors import AnswerInvalid, ApiError, NotReached, RefusedByRunPod, ServerFailed
from infra.transport import Limits, Transport
from tests.infra.raw_server import running_raw, write_answer
from tests.servers import find_openssl

KEY = "rpa_CANARY0123456789"
QUICK = Clock(sleep=lambda _: None)


def open_transport(port, scheme="http"):
    return Transport(f"{scheme}://127.0.0.1:{port}", SecretStr(KEY), QUICK, Limits())


@contextmanager
def connected(answer, tls=None):
    """A server and a transport to it."""
    with running_raw(answer, tls) as server, open_transport(server.port, "https" if tls else "http") as transport:
        yield server, transport


def test_the_key_is_in_one_header_and_nowhere_else():
    with running_raw(write_answer(200)) as server, open_transport(server.port) as transport:
        transport.get("/v2/pods", {"includeClusterPods": True})
        assert KEY not in f"{transport!r} {vars(transport)}"
    [request] = server.requests
    assert request.startswith(b"GET /v2/pods?includeClusterPods=true HTTP/1.1\r\n")
    assert request.count(KEY.encode()) == 1
    assert f"authorization: bearer {KEY}".encode().lower() in request.lower()


def test_a_redirect_is_not_followed_and_the_key_does_not_go_there():
    with running_raw(write_answer(200)) as elsewhere:
        answer = write_answer(307, Location=f"http://127.0.0.1:{elsewhere.port}/v2/pods")
        with running_raw(answer) as server, open_transport(server.port) as transport:
            with pytest.raises(AnswerInvalid, match="RunPod answers 307"):
                transport.get("/v2/pods")
            with pytest.raises(AnswerInvalid, match="RunPod answers 307"):
                transport.post_once("/v2/pods", b"{}")
    assert elsewhere.requests == []


def test_proxies_and_passwords_of_the_environment_are_not_heeded(tmp_path, monkeypatch):
    tmp_path.joinpath(".netrc").write_text("machine 127.0.0.1 login a password b\n")
    with running_raw(write_answer(200)) as proxy, running_raw(write_answer(200)) as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        with open_transport(server.port) as transport:
            transport.get("/v2/pods")
    assert proxy.requests == []
    assert KEY.encode() in server.requests[0]


def test_a_key_that_comes_back_in_an_answer_is_not_shown():
    body = f'{{"title": "x", "status": 409, "detail": "bad key {KEY}", "errors": ["{KEY}"]}}'.encode()
    refusal = pytest.raises(RefusedByRunPod, match=r"bad key \*\*\*")
    with connected(write_answer(409, body)) as (_, transport), refusal as caught:
        transport.get("/v2/pods")
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("call", "sent"), [("get", 5), ("delete", 5), ("post_once", 1)])
def test_a_create_is_sent_once_and_the_others_again(call, sent):
    with connected(write_answer(500)) as (server, transport), pytest.raises(ServerFailed):
        getattr(transport, call)("/v2/pods", *([b"{}"] if call == "post_once" else []))
    assert len(server.requests) == sent


@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_success_that_is_not_201_leaves_open_what_became_of_a_create(status):
    with connected(write_answer(status, b"")) as (_, transport), pytest.raises(ApiError) as caught:
        transport.post_once("/v2/pods", b"{}")
    assert not caught.value.changed_nothing


# --- TLS


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory):
    """What a server needs to speak TLS as 127.0.0.1, which nobody vouches for."""
    folder = tmp_path_factory.mktemp("tls")
    command = [find_openssl(), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert", folder / "key")
    return tls


def test_who_cannot_prove_who_it_is_is_not_sent_the_key(self_signed):
    refusal = pytest.raises(NotReached, match="certificate")
    with connected(write_answer(200), self_signed) as (server, transport), refusal as caught:
        transport.post_once("/v2/pods", b"{}")
    assert caught.value.changed_nothing
    assert server.requests == []
