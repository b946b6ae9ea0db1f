"""What the environment may say, and that neither key nor URL is shown where it says something wrong."""

import traceback

import pytest

from infra.errors import GuardRefused, KeyUnusable
from infra.settings import PodSettings, read_pod_settings

CANARY = "rpa_CANARY0123456789"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("RUNPOD_API_KEY", "RUNPOD_API_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://api.runpod.io", "https://api.runpod.io"),
        ("https://api.runpod.io/v2/", "https://api.runpod.io"),
        ("http://127.0.0.1:8123", "http://127.0.0.1:8123"),
        ("http://[::1]:8123/", "http://[::1]:8123"),
        ("https://localhost", "https://localhost"),
    ],
)
def test_the_key_goes_to_runpod_or_to_this_machine(given, origin):
    assert read_pod_settings(runpod_api_url=given).runpod_api_url == origin


@pytest.mark.parametrize(
    "given",
    [
        "http://api.runpod.io",
        "https://api.runpod.io.example.com",
        "https://example.com/?to=api.runpod.io",
        f"https://api.runpod.io/v2?api_key={CANARY}",
        f"https://{CANARY}@api.runpod.io",
        f"https://api.runpod.io@example.com/{CANARY}",
        "https://api.runpod.io\\@example.com",
        "https://api.runpod.ai",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "https://api.runpod.io:444",
        "http://[::1",
        "api.runpod.io",
        "",
    ],
)
def test_any_other_url_is_refused_and_not_shown(given):
    with pytest.raises(GuardRefused) as caught:
        read_pod_settings(runpod_api_url=given)
    assert str(caught.value).startswith("RUNPOD_API_URL: ")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_the_key_is_in_no_representation(monkeypatch):
    monkeypatch.setenv("RUNPOD_API_KEY", CANARY)
    settings = read_pod_settings()
    assert settings.key.get_secret_value() == CANARY
    assert CANARY not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


@pytest.mark.parametrize("key", [f"{CANARY}\n", f"{CANARY} x", f"{CANARY}é", f"{CANARY}\r\nHost: example.com"])
def test_a_key_that_no_header_could_hold_is_refused_and_not_shown(key):
    with pytest.raises(KeyUnusable, match="RUNPOD_API_KEY") as caught:
        _ = read_pod_settings(runpod_api_key=key).key
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_without_a_key_the_remedy_is_told():
    with pytest.raises(KeyUnusable, match="RUNPOD_API_KEY is not set") as caught:
        _ = read_pod_settings().key
    assert caught.value.exit_code == 3


def test_there_is_a_cap_on_a_fresh_machine_and_a_flag_wins_over_the_variable(monkeypatch):
    assert PodSettings().max_usd_per_hour == 40
    monkeypatch.setenv("H3_PODS_MAX_USD_PER_HOUR", "12.5")
    assert read_pod_settings().max_usd_per_hour == 12.5
    assert read_pod_settings(max_usd_per_hour=7).max_usd_per_hour == 7


@pytest.mark.parametrize("cap", ["0", "-1", "nan", "inf", "much"])
def test_a_cap_that_caps_nothing_is_refused_by_name(monkeypatch, cap):
    monkeypatch.setenv("H3_PODS_MAX_USD_PER_HOUR", cap)
    with pytest.raises(GuardRefused, match=f"H3_PODS_MAX_USD_PER_HOUR '{cap}'"):
        read_pod_settings()
