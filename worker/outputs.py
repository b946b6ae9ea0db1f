"""Ships what a runner yields: each item's file to the store, each item's news as an event. Knows no ranks.

Nothing here makes a step wait: files go up in some threads, news are told in another. The commit marker is written
last, once, and names the objects that make up the result; earlier attempts may have written some of them.
"""

import posixpath
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from redis.exceptions import RedisError

from jobs import events
from jobs.errors import LeaseLost, ObjectExists, PictureInvalid, StoreUnavailable
from jobs.lease import Lease
from jobs.pieces import KeptCheckpoint, KeptPieces, KeptSegment, StoredPiece
from jobs.playlist import PlaylistSegment, render_playlist
from jobs.request import ResolvedRequest
from jobs.result import Result
from jobs.store import Store
from worker import items, metrics
from worker.attempt_store import JSON, AttemptStore
from worker.errors import AttemptLost, NumberUsed, RequestRefused, SpoolFull, Superseded, UploadFailed, WorkerError
from worker.lane import Lane
from worker.outage import insist, is_outage

MP4, PNG = "video/mp4", "image/png"
SAFETENSORS, HLS = "application/octet-stream", "application/vnd.apple.mpegurl"
NEVER_CHANGES = "public, max-age=31536000, immutable"
CHANGES = "no-cache"
PLAYLIST_NAME = "playlist.m3u8"
UPLOAD_THREADS = 4
HANG_S = 5.0  # beyond its limit, at which an upload that gets answers ends by itself

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How much may wait, and for how long."""

    upload_s: float = 300.0  # until a piece that the store does not take ends the job
    spool_bytes: int = 20 << 30  # of files that wait for their upload
    least_free_bytes: int = 1 << 30  # of the disk they wait on


class Outputs:
    """The output of one attempt. `on_failure` hears in another thread that nothing more can be published."""

    def __init__(
        self,
        store: Store,
        store_url: str,
        lease: Lease,
        request: ResolvedRequest,
        *,
        limits: OutputLimits,
        on_failure: Callable[[WorkerError], None],
    ) -> None:
        self._store = AttemptStore(store, lease, limits.upload_s)
        self._store_url, self._lease, self._request, self._limits = store_url, lease, request, limits
        self._on_failure = on_failure
        self._kept = lease.kept
        self._pieces: dict[str, StoredPiece] = {}  # of this attempt, by key; what the result will name
        self._unlisted: list[events.SegmentReady] = []  # not in the playlist yet

        def fail(error: Exception) -> WorkerError:
            judged = _judge(error)
            on_failure(judged)
            return judged

        self._uploads = Lane("uploads", fail, threads=UPLOAD_THREADS, most_bytes=limits.spool_bytes)
        self._news = Lane("news", fail)
        metrics.SPOOL_BYTES.set_function(lambda: self._uploads.size_bytes)

    # --- before

    def find_result(self) -> events.Finished | None:
        """The job's result, if an earlier attempt has committed it and then came no further. Raises UploadFailed."""
        if self._lease.attempt == 1:
            return None
        try:
            result = self._store.find_result()
        except StoreUnavailable as exc:
            raise _judge(exc) from exc
        return None if result is None else self._finished(result)

    def fetch_pictures(self, folder: Path) -> None:
        """Put the request's pictures where the runner looks for them. Raises RequestRefused and UploadFailed."""
        named = {items.FIRST_FRAME: self._request.first_frame, items.LAST_FRAME: self._request.last_frame}
        try:
            for name, key in named.items():
                if key is not None:
                    self._store.fetch_picture(key, folder / name)
        except PictureInvalid as exc:
            raise RequestRefused(str(exc)) from exc
        except StoreUnavailable as exc:
            raise _judge(exc) from exc

    def fetch_resume(self, folder: Path) -> items.Resume | None:
        """What the runner can go on from; None if there is nothing, or it is no longer as it was."""
        if not self._kept.mark:
            return None
        try:
            return self._fetch_resume(folder)
        except (StoreUnavailable, ValueError) as exc:  # of a key that the store cannot have
            log.warning("cannot go on from what is kept, beginning anew", reason=str(exc))
            self._kept = KeptPieces()
            return None

    def _fetch_resume(self, folder: Path) -> items.Resume:
        pieces = self._kept.pieces()
        if strange := [piece.key for piece in pieces if not self._store.owns(piece)]:
            raise StoreUnavailable(f"the queue names {strange[0]!a}, which is no piece of this job")
        self._store.confirm(pieces)
        kept_folder = folder / "kept"
        kept_folder.mkdir()
        for piece in pieces:
            self._store.fetch(piece, kept_folder / name_of(piece))
        stream = tuple(kept_folder / name_of(piece) for piece in self._kept.stream())
        if (checkpoint := self._kept.checkpoint) is None:
            return items.Resume(0, None, stream)
        return items.Resume(checkpoint.step, kept_folder / name_of(checkpoint.piece), stream)

    def begin(self) -> None:
        """Take the attempt's place in the store before anything is written there."""
        self._uploads.add(self._store.take_prefix, first=True)

    # --- during

    def publish(self, item: items.Item) -> None:
        """Ship what the item carries, and then tell of it. Raises SpoolFull."""
        if isinstance(item, items.Preview | items.Checkpoint | items.StreamHeader | items.Segment):
            self._check_disk(item.path)  # not in `commit`: after the last item nothing more will be written
        match item:
            case items.TextEncoded(tokens, seconds):
                self._tell(events.TextEncoded(tokens=tokens, seconds=seconds))
            case items.StepDone(step, steps, sigma, seconds):
                metrics.STEP_SECONDS.observe(seconds)
                self._tell(events.StepDone(step=step, steps=steps, sigma=sigma, seconds=seconds))
            case items.Preview(step, path):
                self._ship(path, PNG, lambda key: self._tell(events.PreviewReady(step=step, key=key)), drop=True)
            case items.Checkpoint():
                self._ship_checkpoint(item)
            case items.StreamHeader(path, segments):
                self._ship(path, MP4, lambda key: self._open_stream(key, segments))
            case items.Segment(index, path, duration_s):
                self._ship(path, MP4, lambda key: self._append(key, index, duration_s))
            case items.Finished():
                raise AssertionError("the last item is for `commit`")

    def commit(self, item: items.Finished) -> events.Finished:
        """Publish the result, once, when everything it names is known to be there."""
        try:
            return self._commit(item)
        except (StoreUnavailable, LeaseLost, RedisError) as exc:
            raise _judge(exc) from exc

    def look(self) -> None:
        """See that no upload hangs, which cannot be asked: fail instead."""
        if (longest_s := self._uploads.longest_s()) > self._limits.upload_s + HANG_S:
            error = UploadFailed(f"an upload has taken {longest_s:.0f} s and does not come to an end")
            self._uploads.give_up(error)
            self._on_failure(error)

    def give_up(self, error: WorkerError) -> None:
        """Whoever waits for the store, or for what is on its way there, hears of this instead."""
        self._store.give_up(error)
        for lane in (self._uploads, self._news):
            lane.give_up(error)

    def settle(self, timeout_s: float) -> None:
        """Give what is on its way, the last checkpoint above all, some time to arrive."""
        deadline = time.monotonic() + timeout_s
        for lane in (self._uploads, self._news):  # the one adds to the other
            lane.settle(deadline - time.monotonic())

    def close(self) -> None:
        """Publish nothing more."""
        self._uploads.close()
        self._news.close()

    # --- what follows an upload, one at a time, in the order of the items

    def _ship_checkpoint(self, checkpoint: items.Checkpoint) -> None:
        def put() -> StoredPiece:
            return self._put_file(checkpoint.path, SAFETENSORS)

        def keep(piece: StoredPiece) -> None:
            kept = self._kept.with_checkpoint(KeptCheckpoint(step=checkpoint.step, piece=piece))
            self._keep(kept, events.CheckpointSaved(step=checkpoint.step, key=piece.key))

        is_last = checkpoint.step == self._request.steps
        self._add_upload(checkpoint.path, put, keep, drop=not is_last)

    def _open_stream(self, key: str, segments: int) -> None:
        self._kept = self._kept.model_copy(update={"header": self._pieces[key], "segments": ()})
        self._keep(self._kept, events.StreamOpened(segments=segments, playlist_key=self._store.key(PLAYLIST_NAME)))

    def _append(self, key: str, index: int, duration_s: float) -> None:
        added = KeptSegment(piece=self._pieces[key], duration_s=duration_s)
        self._kept = self._kept.model_copy(update={"segments": (*self._kept.segments[:index], added)})
        playlist_key = self._store.key(PLAYLIST_NAME)
        event = events.SegmentReady(index=index, key=key, duration_s=duration_s, playlist_key=playlist_key)
        self._unlisted.append(event)
        metrics.SEGMENTS.inc()

    def _list_new_segments(self) -> None:
        """Unless more follows, which then lists all at once."""
        if self._unlisted and not self._uploads.has_more():
            self._list_segments(ended=False)

    def _list_segments(self, *, ended: bool) -> None:
        """Write the playlist, and only then tell of what is new in it."""
        if (header := self._kept.header) is None:
            return  # the runner streams nothing
        lines = [PlaylistSegment(self._store.uri(segment.piece), segment.duration_s) for segment in self._kept.segments]
        text = render_playlist(self._store.uri(header), lines, ended=ended)
        piece = self._store.put(PLAYLIST_NAME, text.encode(), HLS, CHANGES)
        self._pieces[piece.key] = piece
        for event in self._unlisted:
            self._keep(self._kept, event)
        self._unlisted.clear()

    def _keep(self, kept: KeptPieces, event: events.Event) -> None:
        self._kept = kept
        self._news.add(lambda: insist(lambda: self._lease.keep(kept, event)))

    def _tell(self, event: events.Event) -> None:
        self._news.add(lambda: insist(lambda: self._lease.tell(event)))

    # --- uploads

    def _ship(self, path: Path, content_type: str, then: Callable[[str], None], *, drop: bool = False) -> None:
        """Upload a file that the result will name; `then` gets its key."""

        def conclude(piece: StoredPiece) -> None:
            self._pieces[piece.key] = piece
            then(piece.key)

        self._add_upload(path, lambda: self._put_file(path, content_type), conclude, drop=drop)

    def _add_upload(
        self, path: Path, put: Callable[[], StoredPiece], then: Callable[[StoredPiece], None], *, drop: bool
    ) -> None:
        def conclude(piece: StoredPiece) -> None:
            then(piece)
            self._list_new_segments()

        def leave_out() -> None:
            path.unlink()
            metrics.UPLOADS_LEFT_OUT.inc()

        self._uploads.add(put, conclude, size_bytes=path.stat().st_size, drop=leave_out if drop else None)

    def _put_file(self, path: Path, content_type: str) -> StoredPiece:
        """Upload a local file under its own name and delete it."""
        piece = self._store.put(path.name, path, content_type, NEVER_CHANGES)
        path.unlink(missing_ok=True)
        return piece

    def _check_disk(self, path: Path) -> None:
        free = shutil.disk_usage(path.parent).free
        if free < self._limits.least_free_bytes:
            raise SpoolFull(
                f"{path.parent} has {free >> 20} MiB free, less than {self._limits.least_free_bytes >> 20}: "
                "free some, or name another folder in H3_SPOOL_DIR"
            )

    # --- the end

    def _commit(self, item: items.Finished) -> events.Finished:
        for path, content_type in ((item.video, MP4), (item.report, JSON)):
            self._ship(path, content_type, lambda _: None)
        self._uploads.add(lambda: None, lambda _: self._list_segments(ended=True))
        self._uploads.drain()
        header = self._kept.header
        result = Result(
            job_id=self._lease.job_id,
            attempt=self._lease.attempt,
            request=self._request,
            video_key=self._store.key(item.video.name),
            report_key=self._store.key(item.report.name),
            playlist_key=None if header is None else self._store.key(PLAYLIST_NAME),
            pieces=sorted(self._named_pieces(), key=lambda piece: piece.key),
        )
        self._store.confirm(result.pieces)
        self._news.drain()
        insist(self._lease.seal)  # only now, and only if the job is still ours
        return self._finished(self._store.commit(result))

    def _named_pieces(self) -> list[StoredPiece]:
        return list({piece.key: piece for piece in (*self._kept.stream(), *self._pieces.values())}.values())

    def _finished(self, result: Result) -> events.Finished:
        return events.Finished(
            attempt=result.attempt,
            store_url=self._store_url,
            result_key=self._store.result_key,
            video_key=result.video_key,
            report_key=result.report_key,
            playlist_key=result.playlist_key,
        )


def name_of(piece: StoredPiece) -> str:
    """Its last part: of the pieces that one attempt is offered no two have the same."""
    return posixpath.basename(piece.key)


def _judge(error: Exception) -> WorkerError:
    """What a failure of the store or of the queue means for the attempt."""
    match error:
        case WorkerError():
            return error
        case LeaseLost():
            return Superseded(str(error))
        case ObjectExists():
            return NumberUsed(str(error))
        case StoreUnavailable():
            return UploadFailed(str(error))
        case RedisError() if is_outage(error):
            return Superseded(f"the queue cannot be told of it: {error}")
    log.error("outputs broken", exc_info=error)
    return AttemptLost(f"{type(error).__name__}: {error}")
