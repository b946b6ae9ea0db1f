"""The garbage collector, kept away from large imports. No torch here: a program imports this before it.

What an import makes stays, and yet the collector looks through all of it, again and again. A rank process begins with
its collector off, before it can import this: `mgpu/spawn.py`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Off for the imports within, and as before afterwards, whatever they raise; it never looks at what they made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
