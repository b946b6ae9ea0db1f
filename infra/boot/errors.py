"""What keeps a pod from serving.

BootError
├── Unfit               it will not do as it is: the pod stays up, says why, and asks for its end
│   ├── CheckpointRefused   a file cannot be had, or is another than the manifest tells
│   └── NoRoom              the disk is too small
├── PartLost            a part of a file did not come whole   -> it is asked for again
└── Stopped             the pod leaves                        -> what is being done is dropped, and goes on next time
"""


class BootError(Exception):
    """Base of all errors that `infra.boot` raises."""


class Unfit(BootError):
    """The text says what, with values, and the remedy."""


class CheckpointRefused(Unfit):
    """Its server will not give it, or gives another."""


class NoRoom(Unfit):
    """The files do not fit on the disk."""


class PartLost(BootError):
    """Whoever asks again may get it."""

    def __init__(self, text: str, *, reached: int) -> None:
        super().__init__(text)
        self.reached = reached  # bytes of the file before it are there, as far as this part goes


class Stopped(BootError):
    """Somebody has told the pod to leave meanwhile."""
