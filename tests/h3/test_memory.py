"""The predicted peak memory, by count."""

import stat

import pytest

from h3.config import DenoiserConfig
from h3.memory import PIXELS_PER_TOKEN, find_gpu_bytes, predict_most_pixels, predict_token_bytes

GIB = 1 << 30


@pytest.fixture
def config(tiny):
    return DenoiserConfig.from_file(tiny.transformer / "config.json")


def test_a_toy_model_and_the_cpu_have_no_limit(config):
    assert predict_most_pixels(config, GIB, 4 * GIB, 1) is None
    assert predict_most_pixels(config, 100 * GIB, None, 1) is None


def test_what_the_weights_leave_is_for_the_tokens_of_all_ranks(config):
    one, two = (predict_most_pixels(config, 100 * GIB, 140 * GIB, ranks) for ranks in (1, 2))
    assert one == pytest.approx(28 * GIB / predict_token_bytes(config) * PIXELS_PER_TOKEN)
    assert two == pytest.approx(2 * one, rel=1e-6)


def test_weights_that_fill_the_gpu_leave_nothing(config):
    assert predict_most_pixels(config, 100 * GIB, 80 * GIB, 8) == 0


def test_the_smallest_visible_gpu_counts(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *--id=1*) echo 143771 ;; *) echo 8188; echo 143771 ;; esac\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert find_gpu_bytes() == 8188 << 20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_gpu_bytes() == 143771 << 20


def test_a_machine_without_the_drivers_tool_has_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpu_bytes() is None
