"""One attempt at a job on the fleet: the runner's items go out as they come, and its end is judged by class."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from jobs.events import Event, Finished
from jobs.request import ResolvedRequest
from worker.errors import AttemptLost, Interrupted, RequestRefused
from worker.items import Item
from worker.mgpu import (
    AsymmetricRunnerError,
    ControllerShutdownError,
    FatalFleetError,
    MGPUController,
    Stream,
    SymmetricRunnerError,
)
from worker.outputs import Outputs


def run_attempt(
    controller: MGPUController,
    request: ResolvedRequest,
    outputs: Outputs,
    tell: Callable[[Event], None],
    spool: Path | None,
) -> Finished:
    """Render the request; `tell` gets an event for each item in the store, except the last, which is returned.

    Raises RequestRefused, AttemptLost, Interrupted or UploadFailed.
    """
    with tempfile.TemporaryDirectory(prefix="h3render-", dir=spool) as work_dir:
        stream = controller.stream(request=request, work_dir=work_dir)
        try:
            return _ship(stream, outputs, tell)
        except SymmetricRunnerError as exc:
            raise RequestRefused(str(exc)) from exc
        except ControllerShutdownError as exc:
            raise Interrupted("the worker was told to stop") from exc
        except (AsymmetricRunnerError, FatalFleetError) as exc:
            raise AttemptLost(f"{type(exc).__name__}: {exc}") from exc


def _ship(stream: Stream, outputs: Outputs, tell: Callable[[Event], None]) -> Finished:
    finished: Finished | None = None
    try:
        for item in stream:
            event = outputs.publish(_checked(item))
            if isinstance(event, Finished):
                finished = event
            else:
                tell(event)
    except Exception as exc:
        # Whatever it is, nobody wants the rest of the render: let the ranks stop together, and keep them.
        stream.request_stop(type(exc).__name__)
        raise
    finally:
        stream.drain()
    if finished is None:
        raise AttemptLost("the runner ended without yielding Finished")
    return finished


def _checked(item: object) -> Item:
    if not isinstance(item, Item):
        raise AttemptLost(f"the runner yielded {type(item).__name__}, which is none of worker.items")
    return item
