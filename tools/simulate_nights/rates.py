"""How often what goes wrong. Guesses on the bad side: RunPod publishes none, and a reconciler has to bear more."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares are of calls, of pods or of hours, as the comments say; times are in seconds."""

    # Boots, from the create to a worker that is ready
    boot_median_s: float = 360.0
    boot_sigma: float = 0.45
    boot_bounds_s: tuple[float, float] = (180.0, 900.0)

    # Of pods
    stuck: float = 0.03  # never placed
    mute: float = 0.03  # runs, and its worker is never heard
    exits: float = 0.02  # stops by itself soon after it has started
    unfit: float = 0.02  # says so after its checks
    wrong: float = 0.01  # has fewer GPUs than were ordered
    vanishing_per_hour: float = 0.12  # preempted
    silent_per_hour: float = 0.06  # its worker falls silent
    comes_back: float = 0.5  # of those: within `back_within_s`
    back_within_s: float = 240.0

    # Of an hour of a data center; each night has its own share
    gap: tuple[float, float] = (0.05, 0.6)
    gap_is_told: float = 0.7  # by the catalog

    # Of creates
    refused: float = 0.05  # 400 although there is stock
    rate_limited: float = 0.03
    not_reached: float = 0.02
    lost_before: float = 0.03  # the answer and the effect
    lost_after: float = 0.05  # the answer alone
    late: float = 0.2  # of those: the pod comes a while after
    late_within_s: float = 120.0

    # Of other calls, after all the repeats that the client makes
    list_fails: float = 0.01
    list_omits: float = 0.001  # a pod, and says nothing
    get_fails: float = 0.01
    catalog_fails: float = 0.05
    end_fails: float = 0.1  # half of them after the effect
    queue_fails: float = 0.001
    lease_fails: float = 0.0005

    # Slowness
    listing_lag_s: float = 20.0  # at most, of a new pod
    end_slow: float = 0.2  # of ends: takes up to
    end_within_s: float = 90.0
    hears_within_s: float = 5.0  # a worker, of an order to it

    # Crashes of the reconciler, of each boundary of a call that it passes
    crash: float = 0.012
    crash_at_notes: float = 0.0003  # they are written at each look
    down_s: tuple[float, float] = (10.0, 40.0)  # until a supervisor has it up again
    long_down: float = 0.1  # of crashes
    long_down_s: float = 300.0
