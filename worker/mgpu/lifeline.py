"""A rank process dies with its controller, whatever either of them is doing, and is deaf to the terminal.

Two lines, because neither is enough: the kernel's parent-death signal also reaches native code that holds the GIL,
but it is bound to the thread that spawned us; the pipe closes with the controller in any case, but its guard needs
the GIL.
"""

import os
import signal
import threading
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def tie_by_kernel(controller_pid: int) -> str:
    """Source to run first thing in a rank, before it imports anything. The controller may have died just now."""
    return (
        f"import ctypes, os; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGKILL:d}, 0, 0, 0); "
        f"os.getppid() == {controller_pid} or os._exit(1); "
    )


def tie_by_pipe(alive: Connection) -> None:
    """First thing of ours in a rank. `alive` is never written to: it ends when the controller does."""
    threading.Thread(target=_die_with_pipe, args=(alive,), name="mgpu-guard", daemon=True).start()
    os.setsid()  # a Ctrl-C in the terminal is for the controller, which then decides about us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since our start; children may want it


def _die_with_pipe(alive: Connection) -> None:
    os.set_inheritable(alive.fileno(), False)
    os.read(alive.fileno(), 1)
    os.kill(os.getpid(), signal.SIGKILL)
