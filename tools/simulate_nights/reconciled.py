"""One night with the reconciler, which a supervisor starts again whenever it has died."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from infra.clock import Clock
from infra.order import PodOrder, Workspace
from infra.reconciler.decisions import Hold, Order, Plan, Undrain
from infra.reconciler.keep import Keeper, StopWish
from infra.reconciler.limits import Limits
from infra.reconciler.orderer import Orderer
from infra.reconciler.reconciler import Reconciler
from infra.settings import IMAGE, SERVER_EDITION
from tools.simulate_nights.books import PlayedLease, PlayedLedger, PlayedNotebook
from tools.simulate_nights.cloud import Cloud, RentedPod
from tools.simulate_nights.crashes import Crash, Saboteur
from tools.simulate_nights.facts import EndAsked, Facts, Look
from tools.simulate_nights.farm import Farm
from tools.simulate_nights.nights import GPUS, HOST_GB, MOST_PODS, NIGHT_S, REST_S, USD_PER_HOUR, Night
from tools.simulate_nights.played_queue import PlayedQueue
from tools.simulate_nights.played_runpod import PlayedRunPod
from tools.simulate_nights.timeline import HOUR_S, Timeline

PREFIX, FLEET = "h3render", "farm"
LOOK_S = 15.0
END_S = 120.0  # of a pod, that the reconciler reckons with
TOLD = ("USD are spent", "USD per hour are taken", "no price")  # why more are wanted than ordered
ORDER = PodOrder(
    prefix=PREFIX,
    fleet=FLEET,
    slot="pod",
    gpu=SERVER_EDITION,
    count=GPUS,
    image=IMAGE,
    storage=Workspace(size=HOST_GB),
)

Tell = Callable[[float, str], None]  # when, and a line


def _pass(_: float, __: str) -> None:
    """Most nights go by unseen."""


@dataclass(slots=True)
class World:
    """All that a reconciler meets in one night. What outlives it is made once."""

    night: Night
    limits: Limits
    timeline: Timeline
    farm: Farm
    cloud: Cloud
    queue: PlayedQueue
    saboteur: Saboteur
    ledger: PlayedLedger
    notebook: PlayedNotebook
    lease: PlayedLease
    clock: Clock
    facts: Facts
    api: PlayedRunPod = field(init=False)

    def __post_init__(self) -> None:
        self.api = PlayedRunPod(self.night, self.timeline, self.cloud, self.saboteur, self.note_end)

    @classmethod
    def of(cls, night: Night) -> Self:
        timeline = Timeline()
        farm, saboteur = Farm(timeline), Saboteur.of(night, timeline)
        queue = PlayedQueue(night, timeline, farm)
        queue.cloud = cloud = Cloud(night, timeline, farm, lambda name: name in queue.paused)
        jobs = night.draw_jobs()
        farm.submit(jobs)
        limits = Limits(0, MOST_PODS, MOST_PODS * USD_PER_HOUR, night.draw_usd_total(jobs))
        clock = timeline.make_clock(night.random("chance").random)
        return cls(
            night=night,
            limits=limits,
            timeline=timeline,
            farm=farm,
            cloud=cloud,
            queue=queue,
            saboteur=saboteur,
            ledger=PlayedLedger(clock, saboteur),
            notebook=PlayedNotebook(saboteur),
            lease=PlayedLease(night, timeline),
            clock=clock,
            facts=Facts(limits.usd_total, limits.usd_per_hour, jobs=jobs),
        )

    def note_end(self, pod: RentedPod) -> None:
        """Just before a DELETE is sent."""
        if pod.end_asked_s is not None or pod.gone_s is not None:
            return
        pod.end_asked_s = now_s = self.timeline.now_s
        worker = self.farm.workers.get(pod.name)
        others = [one for one in self.cloud.living if one is not pod and one.end_asked_s is None]
        idle = [one.name for one in others if one.name in self.farm.workers and self.farm.workers[one.name].is_idle]
        is_busy = worker is not None and worker.is_busy
        is_over = now_s >= pod.lease_until_s
        self.facts.ends.append(EndAsked(now_s, pod, is_busy, idle, is_over, self._is_budget_spent()))

    def _is_budget_spent(self) -> bool:
        """Or will be by the next look, by what it takes to finish what runs."""
        busy = sum(worker.job is not None for worker in self.farm.workers.values())
        seconds = busy * self.queue.measure().p99_s + len(self.cloud.living) * (END_S + 2 * LOOK_S)
        return self.cloud.usd + seconds * USD_PER_HOUR / HOUR_S >= self.limits.usd_total

    @property
    def is_quiet(self) -> bool:
        """Nothing can come of a look before something happens by itself."""
        if self.cloud.living or self.farm.left or self.timeline.now_s >= NIGHT_S:
            return False
        is_counted = all(tally.usd_per_hour == 0 for tally in self.notebook.read().spend.tallies.values())
        return is_counted and all(row.has_ended for row in self.ledger.rows.values())


class _Rest(StopWish):
    """What the loop waits with between two looks."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout_s: float) -> None:
        world, seconds = self._world, timeout_s
        if world.is_quiet:
            until_s = min(world.timeline.next_s, NIGHT_S)
            seconds = max(seconds, until_s - world.timeline.now_s)
        elif world.farm.waiting and not world.cloud.living:
            world.facts.starved_s += seconds
        world.timeline.advance(seconds)


def run_reconciled(night: Night, tell: Tell = _pass) -> Facts:
    """The whole night, and the rest until no pod is left."""
    return run_world(World.of(night), tell)


def run_world(world: World, tell: Tell = _pass) -> Facts:
    stop = _Rest(world)
    world.timeline.after(NIGHT_S + REST_S, stop.make)
    while True:
        try:
            _start(world, stop, tell).run(is_done=lambda plan: _note_look(world, plan))
        except Crash as crash:
            pause_s = world.saboteur.draw_pause_s()
            tell(world.timeline.now_s, f"CRASH    {crash}; started again in {pause_s:.0f} s")
            world.timeline.advance(pause_s)
        else:
            return _close(world)


def _start(world: World, stop: StopWish, tell: Tell) -> Keeper:
    """As `h3render pods up` does."""

    def say(line: str) -> None:
        tell(world.timeline.now_s, line)

    notes = world.notebook.read()
    world.notebook.write(notes.with_spend(notes.spend.begin_campaign(world.clock.now())))
    reconciler = Reconciler(
        prefix=PREFIX,
        fleet=FLEET,
        limits=world.limits,
        api=world.api,
        ledger=world.ledger,
        notebook=world.notebook,
        queue=world.queue,
        clock=world.clock,
        orderer=Orderer(world.api, world.ledger, world.clock, ORDER, say),
        hold_lease=world.lease.renew,
        is_down_asked=lambda: world.timeline.now_s >= NIGHT_S,
        read_bills=tuple,  # they come an hour late, and only raise what is counted
        keep_log=lambda _, __: None,
        tell=say,
    )
    return Keeper(reconciler, world.lease, world.clock, LOOK_S, stop, say)


def _note_look(world: World, plan: Plan) -> bool:
    """Whether it was the last: the night is over, and no pod is left."""
    look = Look(
        at_s=world.api.listed_s,
        usd=world.api.listed_usd,
        counted_usd=world.notebook.read().spend.campaign_usd,
        is_spent=plan.is_spent,
        jobs_told=plan.jobs,
        jobs_left=world.queue.told_left,
        reason=_find_reason(plan),
        is_served=plan.have > 0 or any(isinstance(one, Order | Undrain) for one in plan.decisions),
    )
    world.facts.looks.append(look)
    return look.at_s >= NIGHT_S and plan.left == 0


def _find_reason(plan: Plan) -> str:
    """Why it orders no more, if something keeps it from that."""
    holds = [one.why for one in plan.decisions if isinstance(one, Hold)]
    # A look that begins before the night's end may hear the wish that comes with it.
    is_told = plan.is_going_down or any(words in plan.why for words in TOLD)
    return "; ".join([*holds, *([plan.why] if is_told else [])])


def _close(world: World) -> Facts:
    facts, workers = world.facts, world.farm.workers.values()
    facts.pods = list(world.cloud.pods.values())
    facts.usd, facts.end_s = world.cloud.usd, world.timeline.now_s
    facts.crashes = world.saboteur.crashes
    facts.idle_s = sum(worker.idle_s for worker in workers)
    facts.used = frozenset(worker.name for worker in workers if worker.attempts)
    return facts
