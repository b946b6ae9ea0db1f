"""The controller: a persistent fleet of ranks that runs one job at a time."""

from __future__ import annotations

import multiprocessing.util
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from worker.mgpu.by_value import define
from worker.mgpu.errors import ControllerStateError
from worker.mgpu.fleet import Fleet
from worker.mgpu.inputs import InputSender
from worker.mgpu.logs import FleetLogs, LineSink, LogsSpecs
from worker.mgpu.placement import Backend, DeviceClaim, Placement
from worker.mgpu.runner import MGPURunner, require_runner_class
from worker.mgpu.segment import SegmentPool
from worker.mgpu.state import State
from worker.mgpu.status import ControllerStatus
from worker.mgpu.stream import SIGNAL_DELAY_S, Stream
from worker.mgpu.supervisor import Supervisor
from worker.mgpu.tensors import Travelling
from worker.mgpu.world import FleetPlan, Outputs

Duration = timedelta | float  # seconds, if a number


class MGPUController:
    """Keeps one process per GPU, runs `runner_cls` on all of them in lockstep, streams what they yield.

    num_gpus, devices   GPUs 0..num_gpus-1, or the given ones in rank order, counted as this process sees them;
                        neither: all visible
    logs_specs          where the ranks' output goes: an elastic LogsSpecs (files in a folder in its root_log_dir,
                        kept), or a callable(rank, line); default: this package's logger
    backend             "gloo" makes num_gpus ranks on the CPU
    allow_shared        whether a device may be in use by another controller of this process
    outputs             "cpu" copies yielded CUDA tensors to the CPU inside the rank
    collective_timeout  of the process groups; a job's own timeout is given to stream()
    asymmetry_grace     how long after a rank's RunnerError the others may take to end; 0: for ever
    max_buffered_bytes  of one rank's yields that the caller has not read; beyond it the rank waits in its `yield`
    check_lockstep      for debugging runners whose ranks all yield alike: a barrier at each yield names the first
                        rank that does not
    share_groups        whether the runner's groups are one communicator: to a runner that communicates from one thread
                        it is the same; separate ones cost GPU memory and idle CPU
    self_test           whether start() ends with a product and a collective of known results, on every rank

    Construction starts nothing and touches no GPU.
    """

    def __init__(
        self,
        runner_cls: type[MGPURunner],
        *,
        num_gpus: int | None = None,
        devices: Sequence[int] | None = None,
        logs_specs: LogsSpecs | LineSink | None = None,
        backend: Backend = "nccl",
        allow_shared: bool = False,
        outputs: Outputs = "device",
        collective_timeout: Duration = timedelta(minutes=30),
        asymmetry_grace: Duration = 30.0,
        max_buffered_bytes: int = 1 << 30,
        check_lockstep: bool = False,
        share_groups: bool = True,
        self_test: bool = False,
    ) -> None:
        require_runner_class(runner_cls)
        self._placement = Placement(num_gpus, None if devices is None else tuple(devices), backend)
        if outputs not in ("device", "cpu"):
            raise ValueError(f"outputs must be 'device' or 'cpu', got {outputs!r}")
        self._runner_cls = runner_cls
        self._logs_specs = logs_specs
        self._allow_shared = allow_shared
        if not (logs_specs is None or callable(logs_specs) or hasattr(logs_specs, "root_log_dir")):
            raise TypeError(f"logs_specs must be a LogsSpecs or a callable(rank, line), got {logs_specs!r}")
        if max_buffered_bytes <= 0:
            raise ValueError(f"max_buffered_bytes must be positive, got {max_buffered_bytes}")
        self._outputs = outputs
        self._collective_timeout = timedelta(seconds=_seconds(collective_timeout))
        self._max_buffered_bytes = max_buffered_bytes
        self._check_lockstep = check_lockstep
        self._share_groups = share_groups
        self._self_test = self_test
        self._supervisor = Supervisor(_seconds(asymmetry_grace))
        self._exit_hooks: list[Callable[[], object]] = []

    def start(self, /, *, timeout: Duration = timedelta(minutes=30), **setup_kwargs: Any) -> None:
        """Spawn the fleet, run setup(**setup_kwargs) on every rank, return when all are ready.

        Raises StartError (a rank raised or died) or StartTimeoutError; then no process is left. Raises ValueError,
        before any process exists, for devices that are not there or have a fleet already.
        """
        self._supervisor.require_own_process()
        plan = self._plan()
        try:
            started = self._supervisor.launch(lambda: self._make_fleet(plan, setup_kwargs), _seconds(timeout))
            self._end_with_us()
            while not wait([started], timeout=SIGNAL_DELAY_S).done:
                pass  # in turns: a wait without a limit may outlast a Ctrl-C
            started.result()
        except ControllerStateError:  # another start(): its fleet is none of ours
            raise
        except BaseException:  # Ctrl-C too: no process may stay behind
            self.shutdown(graceful_timeout=0)
            raise

    def stream(self, /, *, timeout: Duration | None = None, **kwargs: Any) -> Stream:
        """Dispatch one job and return at once. `timeout` bounds it from here until every rank has ended.

        The other keywords are the runner's; top-level tensors arrive on every rank's device, nested ones on the CPU.
        Raises ControllerBusyError while another job is in flight, and whatever the pickling of a keyword raises.
        """
        self._supervisor.require_own_process()
        self._supervisor.require_idle()
        encoded = self._inputs.encode(kwargs)  # fails here, in the caller, before anything is claimed
        timeout_s = None if timeout is None else _seconds(timeout)
        job = self._supervisor.dispatch(encoded, timeout_s)
        return Stream(job, self._supervisor, self)

    def reclaim(self, job_id: int) -> Stream:
        """The job in flight, for this thread to drain, when its owner has ended or has dropped its stream.

        Raises WrongOwnerError while somebody can still read it, ValueError if no such job is in flight.
        """
        self._supervisor.require_own_process()
        return Stream(self._supervisor.reclaim(job_id), self._supervisor, self)

    def shutdown(self, *, graceful_timeout: Duration = 60.0) -> None:
        """End the fleet: ranks finish their job and leave in that time, or are killed. Any thread may call this."""
        self._supervisor.require_own_process()
        self._supervisor.shut_down(_seconds(graceful_timeout))
        for hook in self._exit_hooks:
            hook()
        self._exit_hooks = []

    @property
    def is_alive(self) -> bool:
        """Whether the fleet is up and unpoisoned."""
        self._supervisor.require_own_process()
        return self._supervisor.state in (State.IDLE, State.RUNNING)

    def status(self) -> ControllerStatus:
        """For a health page. Never blocks; any thread may call this."""
        self._supervisor.require_own_process()
        return self._supervisor.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(graceful_timeout=60.0 if kind is None else 0.0)

    def _end_with_us(self) -> None:
        """With this object, and with the program, before multiprocessing waits for the ranks, which is for ever."""
        # In a fork it does nothing: that process' exit is not the fleet's end.
        end = multiprocessing.util.Finalize(None, self._supervisor.shut_down, args=(0.0,), exitpriority=10)
        dropped = weakref.finalize(self, end)
        dropped.atexit = False
        self._exit_hooks = [dropped.detach, end.cancel]

    def _plan(self) -> FleetPlan:
        return FleetPlan(
            runner_definition=define(self._runner_cls),
            backend=self._placement.backend,
            devices=self._placement.resolve(),
            outputs=self._outputs,
            collective_timeout=self._collective_timeout,
            max_buffered_bytes=self._max_buffered_bytes,
            check_lockstep=self._check_lockstep,
            share_groups=self._share_groups,
            self_test=self._self_test,
        )

    def _make_fleet(self, plan: FleetPlan, setup_kwargs: dict[str, object]) -> Fleet:
        claim = DeviceClaim(plan.devices, may_share=self._allow_shared)
        self._inputs = InputSender(plan.devices[0], SegmentPool() if plan.backend == "nccl" else None)
        try:
            return Fleet(plan, claim, Travelling(setup_kwargs), FleetLogs(self._logs_specs), self._supervisor)
        except BaseException:  # a log folder that cannot be made, say
            claim.release()
            raise


def _seconds(duration: Duration) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not seconds >= 0:  # nan too
        raise ValueError(f"a duration cannot be negative, got {duration!r}")
    return seconds
