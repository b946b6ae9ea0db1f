"""A worker whose fleet breaks in mid-render, and which starts over: what happened when, and what must be true of it."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, Literal

from jobs import events
from jobs.client import JobHandle
from jobs.events import EVENTS_KEY
from jobs.store import open_store
from tests.cases.conftest import Farm, Worker
from tests.servers import running_redis
from tests.waiting import eventually
from tests.worker.restart_runners import FOLDER, Breakable, Diary, Entry, Fault, Wish
from worker.stall import STEP_FACTOR

DEATH_LIMIT_S = 10.0
STALL_SEEN_S = 3.0  # beyond the limit of a step, until that is noticed and the ranks are gone
NOISE_BYTES = 256 << 20  # a fleet that were left has gigabytes; what the driver keeps for a device is less than this
START_LIMIT_S, RENDER_LIMIT_S = 90.0, 120.0
MOST_LETTERS = 4000  # of a log that explains a failure


@dataclass(frozen=True)
class Setting:
    """Where it runs, and what is rendered."""

    backend: Literal["nccl", "gloo"]
    width: int = 64
    height: int = 64
    frames: int = 22
    steps: int = 5
    fault_step: int = 3
    step_limit_s: float = 3.0
    ranks: int = 2

    @property
    def request(self) -> dict[str, object]:
        size = {"width": self.width, "height": self.height, "frames": self.frames, "steps": self.steps}
        return {"prompt": "a red kite", "seed": 1, "preview_every": 0, "checkpoint_every": 1, **size}


@dataclass(frozen=True)
class Timeline:
    """Wall-clock seconds."""

    fault: float
    ended: float  # the worker gives the attempt up
    handed_back: float  # the job waits at the head of its queue
    torn_down: float  # the last word before it becomes a new process
    begun: float  # the last of the new ranks is about to load the model
    ready: float  # for jobs
    step_begun: float

    def parts(self) -> dict[str, float]:
        """What the time from the fault to the next step went to; `total_s` is their sum."""
        return {
            "detect_s": self.ended - self.fault,
            "teardown_s": self.torn_down - self.ended,
            "load_s": self.ready - self.torn_down,
            "resume_s": self.step_begun - self.ready,
            "total_s": self.step_begun - self.fault,
        }

    def details(self) -> dict[str, float]:
        return {
            "handed_back_s": self.handed_back - self.fault,
            "load_processes_s": self.begun - self.torn_down,
            "load_model_s": self.ready - self.begun,
        }


@dataclass(frozen=True)
class Restart:
    """How a job fared whose fleet broke."""

    timeline: Timeline
    reason: str  # that the worker gave
    resumed_step: int
    claims: dict[str, bool]

    def broken_claims(self) -> list[str]:
        return [claim for claim, holds in self.claims.items() if not holds]


@contextmanager
def running_worker(
    setting: Setting, checkpoint: Path, folder: Path, launcher: Sequence[str] = ()
) -> Iterator["Restarts"]:
    """With a Redis and a store of its own; it has rendered once. `launcher`: what starts it."""
    with ExitStack() as stack:
        server = stack.enter_context(running_redis())
        # A lease as in production: it does not run out before the worker hands the job back.
        farm = Farm(server.url, (folder / "store").as_uri(), folder, stack, lease_s=60.0)
        yield Restarts(setting, checkpoint, farm, launcher)


class Restarts:
    """One worker through several fleets, and one request again and again."""

    def __init__(self, setting: Setting, checkpoint: Path, farm: Farm, launcher: Sequence[str]) -> None:
        self._setting, self._farm, self._diary = setting, farm, Diary(farm.folder)
        self._store = open_store(farm.store_url)
        # Nobody here can serve it: it stays in the queue, and whatever is handed back must come before it.
        farm.client.submit({**setting.request, "precision": "nvfp4"})
        self._worker = self._start(checkpoint, launcher)
        self._undisturbed = self._await_report(farm.client.submit(setting.request))

    @property
    def step_s(self) -> float:
        """Of the undisturbed render."""
        return median(self._undisturbed["timings"]["step_s"])

    def used_mib(self) -> list[int]:
        """Of each GPU, when the last fleet was about to load the model."""
        return [entry.used_bytes >> 20 for entry in self._fleets()[-1]]

    def log_tail(self) -> str:
        return self._worker.log.read_text()[-MOST_LETTERS:]

    def shared_memory_bytes(self) -> set[int]:
        """What the worker and its ranks have at the most."""
        mounts = [
            os.statvfs(f"/proc/{pid}/root/dev/shm") for pid in (self._worker.process.pid, *self._worker.rank_pids())
        ]
        return {mount.f_frsize * mount.f_blocks for mount in mounts}

    def disturb(self, fault: Fault) -> Restart:
        """Render once more, with a fault in the middle."""
        Wish(fault, self._setting.fault_step).write(self._farm.folder)
        job = self._farm.client.submit(self._setting.request)
        [lost] = self._farm.await_event(job.id, events.AttemptLost, timeout_s=RENDER_LIMIT_S)
        is_first = self._farm.first_in("default") == job.id
        report = self._await_report(job)
        timeline = self._read_timeline(job, fault)
        resumed_step = report["resumed"]["step"] if report["resumed"] else 0
        claims = {
            "the bits of an undisturbed render": report["latents_sha256"] == self._undisturbed["latents_sha256"],
            "two attempts": [e.attempt for e in job.news() if isinstance(e, events.Started)] == [1, 2],
            "taken up where it was": resumed_step >= self._setting.fault_step - 2,
            "lost in time": timeline.ended - timeline.fault < self._limit_s(fault, job),
            "handed back before the restart": timeline.handed_back < timeline.torn_down,
            "at the head of its queue": is_first,
        }
        return Restart(timeline, lost.reason, resumed_step, claims | self._compare_fleets())

    def _start(self, checkpoint: Path, launcher: Sequence[str]) -> Worker:
        setting = self._setting
        environment = {FOLDER: str(self._farm.folder), "H3_STEP_TIMEOUT_S": str(setting.step_limit_s)}
        worker = self._farm.start(
            *("--runner", f"{Breakable.__module__}:{Breakable.__name__}", "--backend", setting.backend),
            *("--checkpoint", str(checkpoint)),
            ranks=setting.ranks,
            launcher=launcher,
            **environment,
            H3_LOG_FORMAT="json",
        )
        eventually(lambda: worker.is_ready() or worker.process.poll() is not None, timeout_s=START_LIMIT_S)
        assert worker.is_ready(), worker.log.read_text()[-MOST_LETTERS:]
        return worker

    def _await_report(self, job: JobHandle) -> dict[str, Any]:
        return json.loads(self._store.get(job.wait(timeout_s=RENDER_LIMIT_S).report_key))

    def _limit_s(self, fault: Fault, job: JobHandle) -> float:
        """Until the attempt must be given up."""
        if fault is Fault.DEATH:
            return DEATH_LIMIT_S
        first_attempt = takewhile(lambda event: not isinstance(event, events.AttemptLost), job.news())
        steps_s = [event.seconds for event in first_attempt if isinstance(event, events.StepDone)]
        median_s = median([*steps_s, *self._undisturbed["timings"]["step_s"]])
        return max(self._setting.step_limit_s, STEP_FACTOR * median_s) + STALL_SEEN_S

    def _compare_fleets(self) -> dict[str, bool]:
        """What the newest finds, beside the first."""
        [first, *_, newest] = self._fleets()
        return {
            "the same process": {entry.worker_pid for entry in newest} == {self._worker.process.pid},
            "no rank is left": not any(entry.left_over for entry in newest),
            "no GPU memory is left": all(
                now.used_bytes < before.used_bytes + NOISE_BYTES for now, before in zip(newest, first, strict=True)
            ),
        }

    def _fleets(self) -> list[list[Entry]]:
        """How the ranks of each began, in rank order."""
        fleets: dict[str, list[Entry]] = {}
        for entry in self._diary.find("begun"):
            fleets.setdefault(entry.fleet, []).append(entry)
        return [sorted(ranks, key=lambda entry: entry.rank) for ranks in fleets.values()]

    def _read_timeline(self, job: JobHandle, fault: Fault) -> Timeline:
        log = iter(self._read_log())
        ended = next(at for at, line in log if line["event"] == "attempt ended" and line["job_id"] == job.id)
        torn_down = next(at for at, line in log if line["event"].startswith("restarting"))
        ready = next(at for at, line in log if line["event"] == "ready for jobs")
        return Timeline(
            fault=self._diary.find(fault)[-1].at,
            ended=ended,
            handed_back=self._lost_at(job),
            torn_down=torn_down,
            begun=max(entry.at for entry in self._fleets()[-1]),
            ready=ready,
            step_begun=next(entry.at for entry in self._diary.find("step") if entry.at > ready),
        )

    def _read_log(self) -> list[tuple[float, dict[str, Any]]]:
        """The worker's lines and when it wrote them, without what others printed there."""
        lines = [json.loads(line) for line in self._worker.log.read_text().splitlines() if line.startswith("{")]
        return [(datetime.fromisoformat(line["timestamp"]).timestamp(), line) for line in lines]

    def _lost_at(self, job: JobHandle) -> float:
        """When Redis had the job back in its queue, and said so. To a millisecond."""
        entries = self._farm.redis.xrange(EVENTS_KEY.format(job_id=job.id))
        [entry_id] = [entry for entry, fields in entries if json.loads(fields[b"event"])["kind"] == "attempt_lost"]
        return int(entry_id.partition(b"-")[0]) / 1e3
