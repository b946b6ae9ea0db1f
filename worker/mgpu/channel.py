"""A rank's end of the link: what it says about itself and its job, and what the controller wants of it meanwhile."""

from __future__ import annotations

import logging

from worker.mgpu.link import Kind, Link, Message
from worker.mgpu.state import Phase
from worker.mgpu.tensors import Packed
from worker.mgpu.window import Window

log = logging.getLogger(__name__)  # to descriptor 2, and so to the rank's log


class Channel:
    def __init__(self, link: Link, max_buffered_bytes: int) -> None:
        self.is_told_to_leave = False
        self.stop_reason: str | None = None  # of the job that runs
        self.job_id = 0
        self.sequence = 0  # how many messages about the job were sent
        self._link = link
        self._max_buffered_bytes = max_buffered_bytes
        self._window = Window(max_buffered_bytes)
        self._has_warned = False

    def say(self, phase: Phase) -> None:
        self._link.send(Message(Kind.PHASE, body=phase.encode()))

    def next_job(self) -> Message | None:
        """Blocks until there is one; None when told to leave instead."""
        while not self.is_told_to_leave:
            message = self._link.receive()
            if message.kind is Kind.JOB:
                self._begin(message.job_id)
                return message
            self._take(message)
        return None

    def tell_item(self, packed: Packed) -> None:
        """Waits while the caller has too much unread, and behind a borrowed tensor until the caller is done with it."""
        if (unread := self._window.must_be_read()) is not None:
            self._warn_of_unread()
            self._await_read(unread)
        sequence = self._tell(Kind.ITEM, packed)
        self._window.sent(sequence, packed.size_bytes)
        if packed.is_borrowed:
            self._await_read(sequence)

    def tell_return(self, packed: Packed) -> None:
        self._tell(Kind.RETURNED, packed)

    def tell_refusal(self, report: bytes) -> None:
        self._tell(Kind.REFUSED, Packed(report, segment=None))

    def take_pending(self) -> None:
        """What has come since, without waiting."""
        for message in self._link.receive_pending():
            self._take(message)

    def _begin(self, job_id: int) -> None:
        self.job_id, self.sequence, self.stop_reason = job_id, 0, None
        self._window = Window(self._max_buffered_bytes)

    def _tell(self, kind: Kind, packed: Packed) -> int:
        sequence = self.sequence
        holds_cuda = packed.shared_bytes > 0 or packed.is_borrowed
        self._link.send(Message(kind, self.job_id, sequence, packed.body, packed.segment, holds_cuda=holds_cuda))
        self.sequence += 1
        if packed.segment:
            packed.segment.close()
        return sequence

    def _await_read(self, sequence: int) -> None:
        """Until the caller is done with that item. The job's time-out bounds it, and any end of the fleet."""
        self._link.send(Message(Kind.WAITS, self.job_id, sequence))
        while self._window.first_unread <= sequence:
            self._take(self._link.receive())

    def _take(self, message: Message) -> None:
        """Anything but a job. What speaks of a job that has ended here came too late to matter."""
        if message.kind is Kind.EXIT:
            self.is_told_to_leave = True
        elif message.job_id == self.job_id and message.kind is Kind.STOP:
            self.stop_reason = message.body.decode()
        elif message.job_id == self.job_id and message.kind is Kind.READ:
            self._window.read_up_to(message.sequence)

    def _warn_of_unread(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            unread_bytes = self._window.unread_bytes
            log.warning("job %d waits in its yield: the caller has not read %d bytes", self.job_id, unread_bytes)
