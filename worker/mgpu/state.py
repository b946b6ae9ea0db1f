"""The states of a controller and the moves between them."""

from enum import StrEnum


class State(StrEnum):
    NEW = "new"  # never started
    STARTING = "starting"  # ranks import, bind their device, run setup()
    IDLE = "idle"  # every rank waits for a job
    RUNNING = "running"  # one job in flight: until its owner has read its end
    POISONED = "poisoned"  # a rank failed, died, hung or diverged; only shutdown() is left
    STOPPING = "stopping"  # shutdown() was called and ranks are leaving
    STOPPED = "stopped"  # no rank process is left


MOVES = {
    State.NEW: {State.STARTING},
    State.STARTING: {State.IDLE, State.STOPPING, State.STOPPED},
    State.IDLE: {State.RUNNING, State.POISONED, State.STOPPING},
    State.RUNNING: {State.IDLE, State.POISONED, State.STOPPING},
    State.POISONED: {State.STOPPED},
    State.STOPPING: {State.STOPPED},
    State.STOPPED: {State.STARTING},
}


class Phase(StrEnum):
    """What a rank last said about itself."""

    SPAWNED = "spawned"  # interpreter starting, importing
    STARTED = "started"  # our code runs; binds its device
    BOUND = "bound"  # has its device; the runner's __init__ runs
    INIT = "init"  # joins the process group
    GROUPS = "groups"  # creates the runner's groups
    SETUP = "setup"  # runs setup()
    READY = "ready"  # waits for a job
    RUNNING = "running"  # works on one
    LEFT = "left"  # torn down in order; the process is about to end
    GONE = "gone"  # the process has ended
