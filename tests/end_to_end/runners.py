"""H3Runner with twists that jobs ask for by their prompt. It runs in rank processes, and folder and store are told by
the environment.
"""

import os
from pathlib import Path

import h3.parallel.decode
from h3.runner import H3Runner
from jobs.store import open_store
from tests.waiting import eventually
from worker.items import StepDone

FOLDER = "TEST_TWISTED"  # where a file is made for each twist that has come about
STORE = "TEST_TWISTED_STORE"  # its URL
STREAM, NONSENSE = "a stream", "nonsense"  # prompts


class Twisted(H3Runner):
    """Of a stream, the clips after the first round are decoded only once the first segment is in the store: never, if
    segments came at the end.

    In the first attempt at nonsense it yields an item with a wrong field: a fault that nobody has a class for.
    """

    def setup(self, **setup):
        super().setup(**setup)
        self._folder, self._store = Path(os.environ[FOLDER]), open_store(os.environ[STORE])

    def __call__(self, *, request, **job):
        if self.rank == 0 and request.prompt == NONSENSE and not (self._folder / NONSENSE).exists():
            (self._folder / NONSENSE).touch()
            yield StepDone(step="one", steps=2, sigma=1.0, seconds=0.1)
        if self.rank == 0 and request.prompt == STREAM:
            h3.parallel.decode.decode_rounds = self._wait_after_first(h3.parallel.decode.decode_rounds)
        yield from super().__call__(request=request, **job)

    def _wait_after_first(self, decode_rounds):
        earlier = self._first_segments()

        def watched(*arguments):
            for index, clips in enumerate(decode_rounds(*arguments)):
                if index == 1:
                    (self._folder / STREAM).touch()
                yield clips
                if index == 0:
                    eventually(lambda: self._first_segments() - earlier, timeout_s=30)

        return watched

    def _first_segments(self):
        return {key for key in self._store.list("") if key.endswith("segment-00000.m4s")}
