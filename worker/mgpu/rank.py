"""The main of a rank process: get ready, then run one job after the other until told to leave.

Between jobs the main thread blocks in a read of its control socket: no collective is pending, nothing polls.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from worker.mgpu import cuda_ipc
from worker.mgpu.by_value import class_from_bytes
from worker.mgpu.channel import Channel
from worker.mgpu.diagnosis import offer_collectives, offer_stacks
from worker.mgpu.errors import RunnerError
from worker.mgpu.inputs import InputReceiver
from worker.mgpu.lifeline import tie_by_pipe
from worker.mgpu.link import Kind, Link, Message
from worker.mgpu.lockstep import require_alike, require_same_step
from worker.mgpu.logs import redirect_output
from worker.mgpu.peers import PeerLostError, Peers
from worker.mgpu.reports import report_error
from worker.mgpu.runner import MGPURunner, NCCLGroups
from worker.mgpu.self_test import check_rank
from worker.mgpu.state import Phase
from worker.mgpu.tensors import Packed, Travelling, pack
from worker.mgpu.world import RankPlan, bind_device, create_groups, join_process_group

log = logging.getLogger(__name__)  # to descriptor 2, and so to the rank's log

_REASON_LIMIT_BYTES = 1 << 10
LEAVE_DEADLINE_S = 5.0  # a runner's left-over threads and exit handlers may hang


@dataclass(frozen=True, slots=True)
class RankEnds:
    """A rank's ends of what connects it with its controller."""

    control: socket.socket  # messages, both ways
    alive: Connection  # ends when the controller does
    output: Connection  # takes what the rank prints
    requests: Connection  # a byte asks for the flight recorder
    peers: tuple[socket.socket, ...]  # to the other ranks, or to rank 0


def rank_main(plan: RankPlan, setup_kwargs: Travelling, ends: RankEnds) -> None:
    gc.freeze()  # what is imported by now stays
    gc.enable()  # off since this process began: see spawn.py
    tie_by_pipe(ends.alive)
    os.set_inheritable(ends.control.fileno(), False)
    os.set_inheritable(ends.requests.fileno(), False)
    redirect_output(ends.output)
    offer_stacks(plan.evidence_folder, plan.rank)
    offer_collectives(plan.evidence_folder, plan.rank, plan.fleet.backend, ends.requests)
    atexit.register(_skip_finalization)  # first in, last to run
    link = Link(ends.control)
    try:
        peers = Peers(plan.rank, ends.peers, plan.fleet.collective_timeout.total_seconds())
        rank = Rank(plan, Channel(link, plan.fleet.max_buffered_bytes), peers, setup_kwargs)
        del setup_kwargs
        rank.serve()
    except BaseException as error:  # the controller must hear of it, SystemExit included
        link.send(Message(Kind.FAILED, body=report_error(error)))
        _wait_to_be_killed()


def _wait_to_be_killed() -> None:
    # Not an exit: that would break collectives which peers are in, and bury our error under theirs.
    while True:
        signal.pause()


class Rank:
    def __init__(self, plan: RankPlan, channel: Channel, peers: Peers, setup_kwargs: Travelling) -> None:
        self._plan = plan
        self._channel = channel
        self._peers = peers
        self._runner = self._prepare(setup_kwargs)
        self._share_cuda = self._can_share_cuda()
        self._inputs = InputReceiver(plan.rank, plan.device, plan.fleet.world_size)

    def serve(self) -> None:
        self._channel.say(Phase.READY)
        while (job := self._channel.next_job()) is not None:
            self._run_job(job)
            del job
        self._leave()

    def _prepare(self, setup_kwargs: Travelling) -> MGPURunner:
        self._channel.say(Phase.STARTED)
        bind_device(self._plan)
        self._channel.say(Phase.BOUND)
        runner_cls = class_from_bytes(self._plan.fleet.runner_definition)
        runner: MGPURunner = runner_cls()
        self._channel.say(Phase.INIT)
        join_process_group(self._plan)
        self._channel.say(Phase.GROUPS)
        self._inject(runner, create_groups(self._plan))
        self._channel.say(Phase.SETUP)
        runner.setup(**setup_kwargs.open())
        if self._plan.fleet.self_test:
            check_rank(self._plan.device, runner.groups.transformer_group, self._plan.rank)
        return runner

    def _can_share_cuda(self) -> bool:
        if self._plan.device.type != "cuda" or self._plan.fleet.outputs == "cpu":
            return False
        if not cuda_ipc.can_share(self._plan.device):
            log.warning("rank %d: CUDA memory in expandable segments cannot be shared; outputs='cpu'", self._plan.rank)
            return False
        return True

    def _inject(self, runner: MGPURunner, groups: NCCLGroups) -> None:
        runner.rank = self._plan.rank
        runner.world_size = self._plan.fleet.world_size
        runner.device = self._plan.device
        runner.devices = self._plan.fleet.devices
        runner.groups = groups
        runner._read_stop = self._read_stop
        runner._peek_stop = self._peek_stop
        runner._require_alike = lambda word: require_alike(self._peers, word)

    def _run_job(self, message: Message) -> None:
        self._runner.stop_reason = None
        self._peers.begin(message.job_id)
        try:
            value = self._iterate(self._call(self._inputs.receive(message)))
        except (RunnerError, ValueError) as error:
            self._compare_steps(has_ended=True)
            self._channel.tell_refusal(report_error(error))
            return
        self._compare_steps(has_ended=True)
        self._channel.tell_return(self._pack(value))

    def _call(self, kwargs: dict[str, object]) -> Generator[Any, Any, Any]:
        try:
            inspect.signature(self._runner.__call__).bind(**kwargs)
        except TypeError as error:
            raise RunnerError(f"{type(self._runner).__qualname__}.__call__: {error}") from error
        generator = self._runner(**kwargs)
        if not inspect.isgenerator(generator):
            raise RunnerError(f"__call__ returned a {type(generator).__name__}, not a generator: use `yield`")
        return generator

    def _iterate(self, generator: Generator[Any, Any, Any]) -> object:
        while True:
            try:
                item = next(generator)
            except StopIteration as end:
                return end.value
            self._compare_steps(has_ended=False)
            self._channel.tell_item(self._pack(item))
            del item

    def _compare_steps(self, *, has_ended: bool) -> None:
        if self._plan.fleet.check_lockstep:
            channel = self._channel
            require_same_step(self._peers, channel.job_id, channel.sequence, has_ended=has_ended)

    def _pack(self, value: object) -> Packed:
        try:
            return pack(value, share_cuda=self._share_cuda)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # reducers raise anything, even ValueError, which would pass for a refusal
            raise UnpicklableResultError(f"{type(value).__name__} does not pickle: {error}") from error

    def _read_stop(self) -> str | None:
        """Collective: what rank 0 finds on its control socket is the answer of all."""
        reason = self._peers.broadcast((self._peek_stop() or "").encode()[:_REASON_LIMIT_BYTES])
        return reason.decode(errors="ignore") or None

    def _peek_stop(self) -> str | None:
        if self._plan.rank != 0:
            return None
        self._channel.take_pending()
        return self._channel.stop_reason

    def _leave(self) -> None:
        self._runner.teardown()
        self._await_peers()
        self._channel.say(Phase.LEFT)
        threading.Thread(target=_exit_at_deadline, name="mgpu-leave", daemon=True).start()
        # No destroy_process_group(): it takes NCCL 2 s (measured on two H200) and can deadlock on graphs that captured
        # collectives. The process ends now, and the kernel and the driver take back everything.

    def _await_peers(self) -> None:
        """A peer that is still in its teardown would take our end for a lost connection."""
        self._peers.begin(self._channel.job_id + 1)  # the last job may have left words unread
        with contextlib.suppress(PeerLostError):  # then there is nothing to wait for
            self._peers.gather(b"")


def _skip_finalization() -> None:
    # An interpreter with torch in it takes 0.7 s to take itself apart (measured on 2 cores); the kernel needs none.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _exit_at_deadline() -> None:
    threading.Event().wait(LEAVE_DEADLINE_S)
    os._exit(0)


class UnpicklableResultError(TypeError):
    """The runner yielded, or returned, what cannot travel."""
