"""What is asked of a run, and what it gives: plain values. Times are of the machine's clock, as Redis has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

STREAMS_A_JOB = 3  # in the mean


@dataclass(frozen=True, slots=True)
class Plan:
    """How much load, for how long."""

    pollers: int
    streams: int
    seconds: float
    down_s: float  # that Redis is away, in the middle
    job_s: float  # of a render, in the mean
    pace: float  # events a second of each render
    cut_every: int  # events of a stream

    @property
    def players(self) -> int:
        """Renders that run at the same time."""
        return max(2, self.streams // STREAMS_A_JOB)


class Asked(StrEnum):
    """What for."""

    POLL = "poll"
    LIST = "list"
    SUBMIT = "submit"
    STREAM = "stream"
    END = "end"  # a stream after its last event, which has nothing to tell


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the service, to one request."""

    asked: Asked
    sent_at: float
    took_s: float  # to its last byte; of a stream to the end of its headers
    status: int  # 0: none came
    flaw: str = ""  # what is wrong with it, whatever its status

    @property
    def came_at(self) -> float:
        return self.sent_at + self.took_s


@dataclass(frozen=True, slots=True)
class Outage:
    """When Redis was away."""

    stopped_at: float  # just before it was told to stop
    back_at: float  # it is known to answer again

    @property
    def middle_at(self) -> float:
        """What is later is after the restart."""
        return (self.stopped_at + self.back_at) / 2


@dataclass(frozen=True, slots=True)
class Told:
    """One event, in the log of its job."""

    id: str
    kind: str

    @property
    def at(self) -> float:
        return int(self.id.partition("-")[0]) / 1000


@dataclass(frozen=True, slots=True)
class Heard:
    """One event, as a stream brought it."""

    told: Told
    at: float
    connected_at: float  # what was told before has waited for the connection

    @property
    def is_live(self) -> bool:
        return self.told.at >= self.connected_at

    @property
    def delay_s(self) -> float:
        return self.at - self.told.at


@dataclass(slots=True)
class Following:
    """One job, as one client followed it over all its connections."""

    job_id: str
    heard: list[Heard] = field(default_factory=list)
    cuts: int = 0  # by the client
    broken: int = 0  # by the service, in good order
    is_over: bool = False  # it had the last event

    @property
    def last_id(self) -> str:
        return self.heard[-1].told.id if self.heard else ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the service took."""

    cpu_s: float
    cpu_wait_s: float  # while others had the cores
    rss_peak_bytes: int
    redis_connections_peak: int


@dataclass(frozen=True, slots=True)
class Run:
    """What happened."""

    began_at: float
    ended_at: float
    outage: Outage
    answers: Sequence[Answer]
    followings: Sequence[Sequence[Following]]  # of each streamer
    logs: Mapping[str, Sequence[Told]]  # by job, of those that were followed
    jobs: int  # that ended
    accidents: Sequence[str]  # what broke off, in the tool or in the service's log
    usage: Usage
    own_cpu_s: float  # of clients and players
    redis: str
