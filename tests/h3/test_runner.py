"""What a process imports with the runner: the one that owns the controller must stay light, a rank start soon."""

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


SKELETON = """
import sys
from h3.checkpoint import skeleton
from h3.untrained import H3, with_curve
skeleton(with_curve(H3), {})
print("torch._dynamo" in sys.modules)
"""


def test_a_model_without_memory_is_built_without_importing_a_compiler():
    done = subprocess.run([sys.executable, "-c", SKELETON], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False"]
