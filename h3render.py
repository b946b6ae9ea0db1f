"""The command `h3render`: the packages' commands under one name.

Each package's cli module imports what is heavy, or comes with an extra, when its command is called. And the commands
are imported when they are asked for: a rank process imports the main module of its worker, and needs none of them.
"""

import gc
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    app: typer.Typer

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
    "serve": "http,embedded",
    "pods": "infra",
}  # else: embedded


@cache
def make_app() -> "typer.Typer":
    """All commands. It is also there as `app`."""
    import typer

    import h3.bench.cli
    import h3.cli
    import infra.cli
    import jobs.backlog_cli
    import jobs.batch.cli
    import jobs.cli
    import jobs.embedded_cli
    import jobs.http.cli
    import jobs.list_cli
    import jobs.operator_cli
    import jobs.result_cli
    import jobs.schema_cli
    import worker.cli

    made = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="A render farm for MiniMax H3.")
    for part in (
        worker.cli,
        jobs.cli,
        jobs.list_cli,
        jobs.backlog_cli,
        jobs.result_cli,
        jobs.batch.cli,
        jobs.http.cli,
        jobs.operator_cli,
        jobs.embedded_cli,
        jobs.schema_cli,
        h3.cli,
        h3.bench.cli,
        infra.cli,
    ):
        made.add_typer(part.app)
    return made


def __getattr__(name: str) -> "typer.Typer":
    if name == "app":
        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command; a missing package is an answer, not a traceback."""
    # An import makes much that stays, and a collector as eager as Python's looks through it again and again. What is
    # there at the end goes with the process: none of it need be looked through. With torch that is 0.5 s of 1.6.
    gc.set_threshold(10_000)
    try:
        make_app()(prog_name="h3render")  # as which a shell completes it, however it was started
    except ModuleNotFoundError as exc:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        extra = EXTRAS.get(command, "embedded")
        sys.stderr.write(f"`h3render {command}` needs {exc.name}: pip install 'h3render[{extra}]'\n")
        sys.exit(2)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
