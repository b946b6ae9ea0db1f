"""The command that a rented machine runs."""

import typer

from infra.desk import plain_errors
from jobs.logs import LogFormat, configure_logs

app = typer.Typer()


@app.command()
def boot() -> None:
    """What a pod's image runs: checks the machine, fetches checkpoints, keeps a worker, and leaves in time.

    It takes its settings from the environment alone, H3_POD_* and what RunPod and the order tell. SIGTERM drains the
    worker. A pod that cannot serve stays up, says why, and asks for its end.
    """
    from infra.boot.pod import Pod
    from infra.boot.settings import read_boot_settings

    configure_logs(LogFormat.AUTO)
    with plain_errors():
        settings, problem = read_boot_settings()
    raise typer.Exit(Pod(settings).run(problem))
