"""Whether a pod renders: what the queue's workers say of themselves. Their names are told to them by the order."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import SecretStr

from jobs.plain_text import plain

if TYPE_CHECKING:
    from jobs.workers import WorkerRecord

ANSWER_S = 10.0


class Work(StrEnum):
    """What is known of a pod's worker."""

    NOT_ASKED = "not asked"  # no queue is named
    UNKNOWN = "unknown"  # the queue does not answer
    ABSENT = "absent"  # no worker of this pod is known, or it is lost
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Busyness:
    """What the queue says of a pod."""

    work: Work
    told: str = ""

    @property
    def forbids(self) -> bool:
        """Whether the pod is to stay until somebody says otherwise."""
        return self.work in (Work.UNKNOWN, Work.BUSY)

    @property
    def is_alive(self) -> bool:
        return self.work in (Work.IDLE, Work.BUSY)

    def describe(self) -> str:
        match self.work:
            case Work.NOT_ASKED:
                return "REDIS_URL is not set, so whether the pod is busy is not checked"
            case Work.UNKNOWN:
                return f"the queue cannot say whether the pod is busy: {self.told}"
            case Work.ABSENT:
                return self.told or "no worker of this pod is known"
            case Work.IDLE:
                return f"its worker is {self.told}"
            case Work.BUSY:
                return f"it renders {self.told}"


def ask_queue(redis_url: SecretStr | None, pod_id: str, pod_name: str) -> Busyness:
    """Never raises: a queue that does not answer is an answer, too."""
    if redis_url is None:
        return Busyness(Work.NOT_ASKED)
    from redis import Redis
    from redis.exceptions import RedisError

    from jobs.workers import read_workers

    url = redis_url.get_secret_value()
    try:
        with Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S) as redis:
            return judge_workers(read_workers(redis), pod_id, pod_name)
    except RedisError as exc:
        return Busyness(Work.UNKNOWN, f"{type(exc).__name__}: is REDIS_URL right, and the server up?")
    except ValueError:
        return Busyness(Work.UNKNOWN, "REDIS_URL is no redis://, rediss:// or unix:// URL")


def judge_workers(records: Iterable["WorkerRecord"], pod_id: str, pod_name: str) -> Busyness:
    """By the workers that go by the pod's name, or whose host is the pod."""
    own = [record for record in records if record.name in (pod_name, pod_id) or record.host == pod_id]
    alive = [record for record in own if record.is_alive]
    if busy := [record for record in alive if record.job is not None or record.state.value == Work.BUSY.value]:
        return Busyness(Work.BUSY, ", ".join(map(_say_job, busy)))
    if alive:
        return Busyness(Work.IDLE, str(alive[0].state))
    return Busyness(Work.ABSENT, plain(own[0].reason) if own else "")


def _say_job(record: "WorkerRecord") -> str:
    job = record.job
    return f"job {plain(job.job_id)}, step {job.step} of {job.steps}" if job is not None else "a job"
