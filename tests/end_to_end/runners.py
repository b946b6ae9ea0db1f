"""H3Runner with a twist, for tests. They run in rank processes and read what they need from the environment."""

import os
from pathlib import Path

from h3.runner import H3Runner
from tests.waiting import eventually
from worker.items import StepDone

WATCHED_STORE = "TEST_WATCHED_STORE"  # a folder
MARKER = "TEST_MARKER"  # a file that the first attempt leaves


class LastClipWaitsForFirstSegment(H3Runner):
    """Decodes the last clip only once the first segment is in the store: never, if segments came at the end."""

    def setup(self, **setup):
        super().setup(**setup)
        clips = self._model.video.clips

        def watched(latents, first=0):
            store = Path(os.environ[WATCHED_STORE])
            for index, clip in enumerate(clips(latents, first)):
                yield clip
                if index == 0:
                    eventually(lambda: list(store.rglob("segment-00000.m4s")), timeout_s=30)

        self._model.video.clips = watched


class SpeaksNonsenseOnce(H3Runner):
    """Yields an item with a wrong field in the first attempt: a fault that nobody has a class for."""

    def __call__(self, **job):
        marker = Path(os.environ[MARKER])
        if self.rank == 0 and not marker.exists():
            marker.touch()
            yield StepDone(step="one", steps=2, sigma=1.0, seconds=0.1)
        yield from super().__call__(**job)
