"""The command `h3render`: the packages' commands under one name.

Each package's cli module imports what is heavy, or comes with an extra, when its command is called. Of these modules
the one that has the command is imported, when it is called: a rank process imports the main module of its worker, and
needs none of them.
"""

import gc
import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    app: typer.Typer

PARTS = {  # module: its commands
    "worker.cli": ("worker", "demo", "doctor"),
    "jobs.cli": ("submit", "watch", "status", "cancel"),
    "jobs.list_cli": ("list",),
    "jobs.backlog_cli": ("backlog",),
    "jobs.result_cli": ("fetch", "play"),
    "jobs.batch.cli": ("batch",),
    "jobs.http.cli": ("serve",),
    "jobs.operator_cli": ("workers", "reap", "gc", "queue", "dead"),
    "jobs.embedded_cli": ("redis",),
    "jobs.schema_cli": ("schema",),
    "h3.cli": ("checkpoint", "encode-text", "denoise", "decode", "sheet", "report"),
    "h3.bench.cli": ("bench",),
    "infra.cli": ("pods",),
}
EXTRAS = {
    "demo": "h3,embedded",
    "worker": "h3",
    "checkpoint": "h3",
    "bench": "h3",
    "encode-text": "h3",
    "denoise": "h3",
    "decode": "h3",
    "sheet": "h3",
    "report": "report",
    "doctor": "worker",
    "serve": "http,embedded",
    "pods": "infra",
}  # else: embedded


@cache
def make_app(*modules: str) -> "typer.Typer":
    """The commands of these. With all of PARTS it is also there as `app`."""
    import typer

    made = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

    @made.callback()  # or one command alone would have no name
    def h3render() -> None:
        """A render farm for MiniMax H3."""

    for module in modules:
        made.add_typer(importlib.import_module(module).app)
    return made


def __getattr__(name: str) -> "typer.Typer":
    if name == "app":
        return make_app(*PARTS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command; a missing package is an answer, not a traceback."""
    # An import makes much that stays, and a collector as eager as Python's looks through it again and again. What is
    # there at the end goes with the process: none of it need be looked through. With torch that is 0.5 s of 1.6.
    gc.set_threshold(10_000)
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    parts = [module for module, commands in PARTS.items() if command in commands]
    try:
        app = make_app(*(parts or PARTS))  # all for help, and for a command that is none
        app(prog_name="h3render")  # as which a shell completes it, however it was started
    except ModuleNotFoundError as exc:
        extra = EXTRAS.get(command, "embedded")
        sys.stderr.write(f"`h3render {command}` needs {exc.name}: pip install 'h3render[{extra}]'\n")
        sys.exit(2)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
