"""The command that prints the JSON Schemas of what people send and read."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from jobs.schema import event_schema, request_schema, result_schema

app = typer.Typer()


class Subject(StrEnum):
    """What a schema is of."""

    REQUEST = "request"
    EVENT = "event"
    RESULT = "result"


_SCHEMAS = {Subject.REQUEST: request_schema, Subject.EVENT: event_schema, Subject.RESULT: result_schema}


@app.command()
def schema(
    subject: Annotated[
        Subject, typer.Argument(help="What is sent, what is told about a job, or what lies in the store at its end.")
    ] = Subject.REQUEST,
) -> None:
    """Print the JSON Schema of requests, events or results."""
    typer.echo(json.dumps(_SCHEMAS[subject](), indent=2))
