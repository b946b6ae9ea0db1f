"""What the process that owns the controller gets with the runner: it keeps leases and must stay light."""

import subprocess
import sys

PROGRAM = """
import sys
import h3.runner
print(*({"diffusers", "transformers", "accelerate"} & sys.modules.keys()))
"""


def test_the_runner_is_imported_without_the_libraries_of_the_models():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
