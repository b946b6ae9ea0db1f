"""Ships what a runner yields: each item's file to the store, each item's news as an event. Knows no ranks.

Everything lies under the attempt's own prefix, so that two attempts of a job never write the same object. The one
exception is the commit marker, which is written last, once, and names the objects that make up the result.
"""

from pathlib import Path

from jobs import events
from jobs.errors import ObjectExists, StoreUnavailable
from jobs.request import ResolvedRequest
from jobs.result import Result, StoredPiece, result_key
from jobs.store import Store
from worker import items
from worker.errors import UploadFailed
from worker.playlist import PlaylistSegment, render_playlist

MP4, PNG, JSON = "video/mp4", "image/png", "application/json"
SAFETENSORS, HLS = "application/octet-stream", "application/vnd.apple.mpegurl"
NEVER_CHANGES = "public, max-age=31536000, immutable"
CHANGES = "no-cache"
PLAYLIST_NAME = "playlist.m3u8"


def piece_key(job_id: str, attempt: int, name: str) -> str:
    """Where a piece of an attempt lies in the store."""
    return f"{job_id}/attempts/{attempt}/{name}"


class Outputs:
    """The output of one attempt."""

    def __init__(self, store: Store, store_url: str, job_id: str, attempt: int, request: ResolvedRequest) -> None:
        self._store, self._store_url = store, store_url
        self._job_id, self._attempt, self._request = job_id, attempt, request
        self._pieces: dict[str, StoredPiece] = {}  # by key; what the result will name
        self._header_name = ""
        self._segments: list[PlaylistSegment] = []

    def publish(self, item: items.Item) -> events.Event:
        """Upload what the item carries, delete the local file, and say what there is now.

        Raises UploadFailed.
        """
        try:
            return self._publish(item)
        except StoreUnavailable as exc:
            raise UploadFailed(str(exc)) from exc

    def _publish(self, item: items.Item) -> events.Event:
        match item:
            case items.TextEncoded(tokens, seconds):
                return events.TextEncoded(tokens=tokens, seconds=seconds)
            case items.StepDone(step, steps, sigma, seconds):
                return events.StepDone(step=step, steps=steps, sigma=sigma, seconds=seconds)
            case items.Preview(step, path):
                return events.PreviewReady(step=step, key=self._ship(path, PNG))
            case items.Checkpoint(step, path):
                return events.CheckpointSaved(step=step, key=self._ship(path, SAFETENSORS, in_result=False))
            case items.StreamHeader(path, segments):
                self._ship(path, MP4)
                self._header_name = path.name
                return events.StreamOpened(segments=segments, playlist_key=self._key(PLAYLIST_NAME))
            case items.Segment():
                return self._publish_segment(item)
            case items.Finished(video, report):
                return self._commit(self._ship(video, MP4), self._ship(report, JSON))

    def _publish_segment(self, segment: items.Segment) -> events.SegmentReady:
        key = self._ship(segment.path, MP4)
        self._segments.append(PlaylistSegment(segment.path.name, segment.duration_s))
        self._put_playlist(ended=False)  # only now: a player must never be told of a segment that is not there
        return events.SegmentReady(index=segment.index, key=key, duration_s=segment.duration_s)

    def _commit(self, video_key: str, report_key: str) -> events.Finished:
        self._put_playlist(ended=True)
        result = Result(
            job_id=self._job_id,
            attempt=self._attempt,
            request=self._request,
            video_key=video_key,
            report_key=report_key,
            playlist_key=self._key(PLAYLIST_NAME),
            pieces=sorted(self._pieces.values(), key=lambda piece: piece.key),
        )
        return self._finished(self._commit_once(result))

    def _commit_once(self, result: Result) -> Result:
        """Write the marker; if another attempt was first, its result is the job's and ours is discarded."""
        key = result_key(self._job_id)
        try:
            self._store.put_once(key, result.model_dump_json(indent=2).encode(), content_type=JSON)
        except ObjectExists:
            return Result.model_validate_json(self._store.get(key))
        return result

    def _finished(self, result: Result) -> events.Finished:
        return events.Finished(
            attempt=result.attempt,
            store_url=self._store_url,
            result_key=result_key(self._job_id),
            video_key=result.video_key,
            report_key=result.report_key,
            playlist_key=result.playlist_key,
        )

    def _put_playlist(self, *, ended: bool) -> None:
        text = render_playlist(self._header_name, self._segments, ended=ended)
        self._put(PLAYLIST_NAME, text.encode(), HLS, CHANGES)

    def _ship(self, path: Path, content_type: str, *, in_result: bool = True) -> str:
        """Upload a local file under its own name and delete it; its key."""
        key = self._put(path.name, path, content_type, NEVER_CHANGES, in_result=in_result)
        path.unlink()
        return key

    def _put(
        self, name: str, body: bytes | Path, content_type: str, cache_control: str, *, in_result: bool = True
    ) -> str:
        key = self._key(name)
        stored = self._store.put(key, body, content_type=content_type, cache_control=cache_control)
        if in_result:
            self._pieces[key] = StoredPiece(key=key, size_bytes=stored.size_bytes, sha256=stored.sha256)
        return key

    def _key(self, name: str) -> str:
        return piece_key(self._job_id, self._attempt, name)
