"""What is sent for an order, and what is refused before anything is sent."""

import json
import os
import traceback

import pytest
from pydantic import ValidationError

from infra.errors import GuardRefused
from infra.given_files import read_env_file, read_public_key
from infra.order import PodBody, VolumeMount, check_env, check_mount_path
from infra.pod_names import check_pod_id, check_slot, is_ours, make_token
from infra.settings import IMAGE, SERVER_EDITION
from tests.infra.pods import NAME, TOKEN, make_body

KEY = "rpa_CANARY0123456789"
SECRET = "canary-of-env"


def test_the_body_of_the_seeds_line():
    assert json.loads(make_body().to_json()) == {
        "name": NAME,
        "image": IMAGE,
        "gpu": {"id": SERVER_EDITION, "count": 8, "minCudaVersion": "13.0"},
        "cloud": "SECURE",
        "dataCenterIds": ["US-KS-2"],
        "mounts": {"persistent": {"size": 100, "path": "/workspace"}},
        "disk": 80,
        "ports": ["22/tcp"],
        "env": {
            "FLEET_ID": "manual",
            "FLEET_TOKEN": TOKEN,
            "LEASE_UNTIL": "2026-11-30T18:00:00+00:00",
            "H3_WORKER_NAME": NAME,
        },
        "startSsh": True,
    }


def test_a_volume_takes_the_place_of_the_workspace_and_a_key_goes_along():
    body = make_body(storage=VolumeMount(volume_id="vol1", path="/runpod-volume"), public_key="ssh-ed25519 AAAA me")
    sent = json.loads(body.to_json())
    assert sent["mounts"] == {"network": [{"volumeId": "vol1", "path": "/runpod-volume"}]}
    assert sent["env"]["PUBLIC_KEY"] == "ssh-ed25519 AAAA me"


def test_values_for_the_pod_are_sent_and_never_shown():
    body = make_body(env={"SECRET": SECRET})
    assert SECRET in body.to_json().decode()
    assert body.to_shown()["env"]["SECRET"] == "***"
    assert SECRET not in f"{body!r} {body.to_shown()}"


def test_a_field_that_the_document_does_not_have_is_no_body():
    with pytest.raises(ValidationError, match="gpuTypeIds"):
        PodBody.model_validate(json.loads(make_body().to_json()) | {"gpuTypeIds": []})


def test_a_body_that_is_too_large_is_refused():
    with pytest.raises(GuardRefused, match="RunPod takes 102400"):
        make_body(env={"SECRET": "x" * 102_400})


def test_tokens_differ_and_make_names_that_fit():
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 16 for token in tokens)
    longest = make_body(token=make_token(), prefix="p" * 12, fleet="f" * 12, slot="s" * 16)
    assert len(longest.name) <= 60


def test_ours_are_told_by_the_whole_first_part_of_their_names():
    assert is_ours(NAME, "h3render")
    assert not is_ours("h3renderer-1", "h3render")
    assert not is_ours("x-h3render-1", "h3render")


@pytest.mark.parametrize("slot", ["", "Upper", "a b", "-a", "a-", "x" * 17, "a/b", "a\n"])
def test_a_part_of_a_name_that_would_not_do_is_refused(slot):
    with pytest.raises(GuardRefused, match="--name"):
        check_slot(slot)


@pytest.mark.parametrize("pod_id", ["", "a/b", "../x", "a b", "x" * 65, "a\n", "?", "."])
def test_what_is_no_id_is_refused(pod_id):
    with pytest.raises(GuardRefused, match="no id of a pod"):
        check_pod_id(pod_id)


@pytest.mark.parametrize("path", ["", "relative", "/", "/a/../b", "/a\nb"])
def test_a_mount_path_that_is_no_absolute_folder_is_refused(path):
    with pytest.raises(GuardRefused, match="--volume-mount-path"):
        check_mount_path(path)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"1X": "a"}, "1X"),
        ({"FLEET_TOKEN": "a"}, "FLEET_TOKEN"),
        ({"RUNPOD_API_KEY": "a"}, "RUNPOD_API_KEY"),
        ({"SECRET": f"Bearer {KEY}"}, "SECRET"),
        ({f"V{number}": "" for number in range(46)}, "46 variables"),
    ],
)
def test_what_may_not_go_onto_a_pod_is_refused_without_its_value(env, named):
    with pytest.raises(GuardRefused, match=named) as caught:
        check_env(env, KEY)
    assert KEY not in "".join(traceback.format_exception(caught.value))


# --- files


def test_public_keys_are_read_one_a_line(tmp_path):
    path = tmp_path / "id.pub"
    path.write_text("ssh-ed25519 AAAA me@here\r\n\nsk-ssh-ed25519@openssh.com BBBB\necdsa-sha2-nistp256 CCCC a b\n")
    assert read_public_key(path).splitlines() == [
        "ssh-ed25519 AAAA me@here",
        "sk-ssh-ed25519@openssh.com BBBB",
        "ecdsa-sha2-nistp256 CCCC a b",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"null",
        b"SHA256:abcdef me@here",
        b"ssh-ed25519",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\ncanary\n",
        b"ssh-ed25519 AAAA\nnull\n",
        b"\xff\xfe",
        b"ssh-ed25519 " + b"A" * (65 << 10),
    ],
)
def test_what_is_no_public_key_is_refused_and_not_shown(tmp_path, content):
    path = tmp_path / "id"
    path.write_bytes(content)
    with pytest.raises(GuardRefused, match="--ssh-public-key") as caught:
        read_public_key(path)
    assert "canary" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(GuardRefused, match="No such file"):
        read_public_key(tmp_path / "none.pub")


def write_env(tmp_path, text, mode=0o600):
    path = tmp_path / "pod.env"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_env_file_is_read_line_by_line(tmp_path):
    path = write_env(tmp_path, "# worker\nREDIS_URL=rediss://:pw=1@host/0\n\nH3_MODE = tensor\n")
    assert read_env_file(path) == {"REDIS_URL": "rediss://:pw=1@host/0", "H3_MODE": "tensor"}


@pytest.mark.parametrize("text", [f"{SECRET}\n", f"A=1\nA={SECRET}\n"])
def test_a_wrong_line_of_it_is_told_by_its_number(tmp_path, text):
    with pytest.raises(GuardRefused, match="line ") as caught:
        read_env_file(write_env(tmp_path, text))
    assert SECRET not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_an_env_file_that_others_may_read_is_refused(tmp_path):
    with pytest.raises(GuardRefused, match="chmod 600"):
        read_env_file(write_env(tmp_path, "A=1\n", mode=0o640))
