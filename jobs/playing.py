"""Plays a render on this machine, while it is still decoded if need be."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs import events
from jobs.client import JobHandle
from jobs.events import Event
from jobs.job_status import JobState
from jobs.players import Player, PlayerEnded, Program
from jobs.progress import Display, open_display
from jobs.store import Store
from jobs.stream_copy import StreamCopy


def play(job: JobHandle, store: Store, program: Program) -> int:
    """Play a job's video, as soon as its first segment is there; the player's exit code, once it has ended.

    The copy that is played is deleted, however this ends. What an attempt has shown is not shown again by the next one:
    see `stream_copy`. Raises JobFailed, after what there was of it, and StoreUnavailable.

    store  that the worker writes to while it runs
    """
    with TemporaryDirectory(prefix="h3render-play-") as folder, Player(program) as player:
        if job.status().state is JobState.FINISHED:
            player.start(job.fetch(Path(folder)), grows=False)
        else:
            _Screening(job, StreamCopy(store, job.id, Path(folder)), player, Path(folder)).follow()
        return player.wait()


@dataclass(frozen=True, slots=True)
class _Screening:
    """A job that has not ended, and the player that is to show it."""

    job: JobHandle
    copy: StreamCopy
    player: Player
    folder: Path

    def follow(self) -> None:
        """Feed the player until the job or the player has ended. Raises JobFailed."""
        with open_display() as display:
            news = self.job.events(while_waiting=self._wait(display))
            told = list(_until_playable(news, display))
        last: Event | None = None
        with suppress(PlayerEnded):
            for last in chain(told[-1:], news):
                self._take(last)
            self.copy.end()
            if not isinstance(last, events.Finished):
                self.player.wait()  # until it has shown what there was
                self.job.conclude(last)

    def _wait(self, display: Display) -> Callable[[], None]:
        """For the display as long as it is the one that is looked at, then for the player."""
        return lambda: self.player.check() if self.player.is_started else display.note(self.job.status())

    def _take(self, event: Event) -> None:
        match event:
            case events.SegmentReady(index=index, playlist_key=key) if index >= self.copy.length:
                self._copy(key)
            case events.Finished(playlist_key=key) if key is not None and self.copy.length:
                self._copy(key)
            case events.Finished():  # of a runner that streams nothing
                self.player.start(self.job.fetch(self.folder), grows=False)
        self.player.check()

    def _copy(self, playlist_key: str) -> None:
        for path in self.copy.extend(playlist_key):
            if not self.player.is_started:
                self.player.start(path, grows=True)
            self.player.check()


def _until_playable(news: Iterator[Event], display: Display) -> Iterator[Event]:
    """Shows and gives events up to the first that brings something to play, or to the last one."""
    for event in news:
        display.tell(event)
        yield event
        if isinstance(event, events.SegmentReady) or event.is_last:
            return
