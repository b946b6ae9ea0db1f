"""What people wait for before anything is done: imports of the client, and a shell's completion of a command.

Told in seconds of a machine that counts to three million in 0.12 s: one that is slower, or shared, is given more.
"""

import subprocess
import sys
import time

import pytest

from tests.jobs.test_cli import complete

LONGEST_IMPORT_S, LONGEST_COMPLETION_S = 0.5, 1.0
TRIES = 12
COUNTED_TO, COUNTED_S = 3_000_000, 0.12
TIMED = "from time import perf_counter; began = perf_counter(); {}; print(perf_counter() - began)"


def quickest(measure, longest_s):
    """Of a few tries, for other processes take time meanwhile."""
    took_s = []
    while not took_s or (min(took_s) > longest_s and len(took_s) < TRIES):
        slowness = max(1.0, count_s() / COUNTED_S)
        took_s.append(measure() / slowness)
    return min(took_s)


def count_s():
    began = time.perf_counter()
    for _ in range(COUNTED_TO):
        pass
    return time.perf_counter() - began


@pytest.mark.parametrize("statement", ["import jobs", "from jobs import Client, AsyncClient, GenerateRequest"])
def test_imports_are_quick(statement):
    command = [sys.executable, "-I", "-c", TIMED.format(statement)]

    def by_the_clock():
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert quickest(by_the_clock, LONGEST_IMPORT_S) <= LONGEST_IMPORT_S


def test_a_shell_completes_commands_quickly(tmp_path):
    assert quickest(lambda: complete("h3render can", tmp_path)[1], LONGEST_COMPLETION_S) <= LONGEST_COMPLETION_S
