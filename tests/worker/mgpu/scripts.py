"""Controllers in a process of their own, to be ended from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
RunScript = Callable[[str], "subprocess.Popen[str]"]

PREAMBLE = """
import os, signal, sys, threading, time
from worker.collector import uncollected_imports
with uncollected_imports():  # half a second less of each script
    from tests.waiting import eventually
    from tests.worker.mgpu.runners import CommandRunner, SetupRunner
    from worker.mgpu import MGPUController, MGPURunner

class Item:
    pass

class OwnRunner(MGPURunner):
    def __call__(self, *, item):
        assert type(item) is Item
        yield item

def fleet(runner_cls=CommandRunner, num_gpus=2):
    controller = MGPUController(runner_cls, num_gpus=num_gpus, backend="gloo")
    controller.start(timeout=60)
    tell_pids(controller)
    return controller

def tell_pids(controller):
    print(*[rank.pid for rank in controller.status().ranks], flush=True)
"""


def start_script(folder: Path, body: str) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(PREAMBLE + body)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, path], stdout=pipe, stderr=pipe, text=True, env=environment)


def read_line(script: subprocess.Popen[str]) -> str:
    assert script.stdout is not None
    line = script.stdout.readline()
    assert line, script.communicate()[1]
    return line.rstrip()


def read_pids(script: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in read_line(script).split()]
