"""Runs the tests that need CUDA GPUs, and a render on them, and writes a report to commit.

python tools/gpu_suite.py benchmarks/reports/gpu-suite-2xH200.json
python tools/gpu_suite.py benchmarks/reports/controller-suite-1xH200.json -m gpu tests/worker/mgpu    (a part)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that is run sees only its own folder

from h3.machine import describe_machine

SELECTIONS = (
    ["-m", "gpu"],
    ["tests/end_to_end/test_render.py"],
)


def main(report: Path, *selection: str) -> int:
    """Run the given selection, or each of ours; the exit code is that of the first that failed."""
    runs = [run_pytest(chosen) for chosen in ([list(selection)] if selection else SELECTIONS)]
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({**describe_machine(), "runs": [entry for entry, _ in runs]}, indent=1) + "\n")
    return next((code for _, code in runs if code), 0)


def run_pytest(selection: list[str]) -> tuple[dict[str, object], int]:
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        done = subprocess.run([sys.executable, "-m", "pytest", f"--junitxml={results.name}", *selection], check=False)
        cases = list(ElementTree.parse(results.name).iter("testcase"))  # our own pytest wrote it
    tests = {f"{case.get('classname')}.{case.get('name')}": outcome(case) for case in cases}
    return {"pytest": " ".join(selection), "tests": tests}, done.returncode


def outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return f"passed in {float(case.get('time', 0)):.2f} s"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
