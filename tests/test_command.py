"""The command `h3render`: where its commands come from."""

import subprocess
import sys

import pytest
import typer

import h3render

WHAT_IT_IMPORTS = """
import sys
import h3render
try:
    h3render.main()
finally:
    print(*[module for module in h3render.PARTS if module in sys.modules])
"""


@pytest.mark.parametrize("module", h3render.PARTS)
def test_each_command_is_found_in_its_part(module):
    part = typer.main.get_group(h3render.make_app(module))
    assert sorted(part.commands) == sorted(h3render.PARTS[module])


def test_the_parts_have_all_commands_and_none_twice():
    commands = [command for part in h3render.PARTS.values() for command in part]
    assert sorted(commands) == sorted(set(commands)) == sorted(typer.main.get_group(h3render.app).commands)


def test_a_command_imports_its_own_part_alone():
    """Each of the others would make every answer later."""
    command = [sys.executable, "-c", WHAT_IT_IMPORTS, "schema", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "jobs.schema_cli"


def test_a_command_that_is_none_is_told_with_its_neighbours():
    command = [sys.executable, "-m", "h3render", "statsu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr
