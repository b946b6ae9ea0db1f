import sys
from importlib.machinery import ModuleSpec

import pytest

from h3.machine import describe_machine


@pytest.mark.parametrize(
    ("program", "module", "told"),
    [
        ("/usr/bin/h3render", None, "h3render bench 'a b'"),
        ("/somewhere/h3render.py", "h3render", "h3render bench 'a b'"),
        ("tools/chaos", "__main__", "python tools/chaos bench 'a b'"),
        ("tools/train.py", None, "python tools/train.py bench 'a b'"),
        ("/somewhere/tests/quality/report.py", "tests.quality.report", "python -m tests.quality.report bench 'a b'"),
    ],
)
def test_a_report_tells_the_command_as_somebody_types_it(monkeypatch, program, module, told):
    monkeypatch.setattr(sys, "argv", [program, "bench", "a b"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", module and ModuleSpec(module, None))
    assert describe_machine(on_gpus=False)["command"] == told
