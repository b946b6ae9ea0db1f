"""The command `h3render`: the packages' commands under one name.

Each package's cli module imports what is heavy, or comes with an extra, when its command is called.
"""

import sys

import typer

import h3.cli
import jobs.batch.cli
import jobs.cli
import jobs.embedded_cli
import jobs.list_cli
import jobs.operator_cli
import jobs.result_cli
import jobs.schema_cli
import worker.cli

EXTRAS = {
    "demo": "h3,embedded",
    "worker": "h3",
    "checkpoint": "h3",
    "bench": "h3",
    "encode-text": "h3",
    "denoise": "h3",
    "decode": "h3",
    "report": "report",
    "doctor": "worker",
}  # else: embedded

PARTS = (
    worker.cli,
    jobs.cli,
    jobs.list_cli,
    jobs.result_cli,
    jobs.batch.cli,
    jobs.operator_cli,
    jobs.embedded_cli,
    jobs.schema_cli,
    h3.cli,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="A render farm for MiniMax H3.")
for part in PARTS:
    app.add_typer(part.app)


def main() -> None:
    """Run the command; a missing package is an answer, not a traceback."""
    try:
        app(prog_name="h3render")  # as which a shell completes it, however it was started
    except ModuleNotFoundError as exc:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        extra = EXTRAS.get(command, "embedded")
        typer.echo(f"`h3render {command}` needs {exc.name}: pip install 'h3render[{extra}]'", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
