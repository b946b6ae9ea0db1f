"""Which classes travel by name and which by their definition."""

from __future__ import annotations

import os
import pathlib
import threading

import pytest
import torch

from tests.worker.mgpu.runners import CommandRunner
from worker.mgpu.by_value import class_from_bytes, class_to_bytes, define, travels_by_value


@pytest.mark.parametrize("cls", [int, dict, os.PathLike, pathlib.Path, threading.Thread, torch.Size, CommandRunner])
def test_what_a_child_can_import_travels_by_name(cls: type) -> None:
    """19"""
    assert not travels_by_value(cls)
    assert len(class_to_bytes(cls)) < 200


def test_a_class_in_a_function_travels_by_value_and_comes_back_as_itself() -> None:
    """19, 20"""

    class Local:
        pass

    assert travels_by_value(Local)
    assert class_from_bytes(class_to_bytes(Local)) is Local


def test_a_class_is_defined_as_it_is_when_a_fleet_starts() -> None:
    """19: a notebook's class changes between two fleets."""

    class Local:
        scale = 1

    first = define(Local)
    Local.scale = 2
    assert class_to_bytes(Local) == first
    assert define(Local) != first
