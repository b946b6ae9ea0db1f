"""A worker's part of a render, step by step, as a test wants it: real leases, events and objects, and no model."""

from redis import Redis

from jobs.client import Client
from jobs.events import Finished, PreviewReady, SegmentReady, StepDone, StreamOpened
from jobs.lease import Lease, Leases, Waiting
from jobs.pieces import KeptPieces, KeptSegment, StoredPiece
from jobs.result import Result, result_key
from jobs.store import Store

PNG = b"\x89PNG\r\n\x1a\n of a test"
VIDEO = bytes(range(256)) * 16
HEADER, SEGMENT_S = b"ftyp moov", 1.0
WORKER = "gpu-1"


def segment_of(index: int) -> bytes:
    return f"moof mdat {index}".encode()


class Render:
    """One attempt, claimed. What it publishes is small and not to be played."""

    def __init__(self, redis: Redis, store: Store, job_id: str, queue: str = "default", *, steps: int = 4) -> None:
        lease = Leases(redis).claim(Waiting(job_id, queue, "", b"", 0.0), WORKER)
        assert lease is not None, f"somebody else has {job_id}"
        self.lease: Lease = lease
        self.steps = steps
        self._redis, self._store = redis, store
        self._kept = KeptPieces()
        self._pieces: list[StoredPiece] = []

    def step(self, step: int) -> None:
        self.lease.tell(StepDone(step=step, steps=self.steps, sigma=0.5, seconds=0.25))

    def preview(self, step: int, body: bytes = PNG) -> None:
        piece = self._put(f"preview-{step:04d}.png", body, "image/png")
        self.lease.tell(PreviewReady(step=step, key=piece.key))

    def open_stream(self, segments: int, header: bytes = HEADER) -> None:
        self._kept = self._kept.model_copy(update={"header": self._put("init.mp4", header, "video/mp4")})
        self.lease.keep(self._kept, StreamOpened(segments=segments, playlist_key=self._key("playlist.m3u8")))

    def segment(self, body: bytes | None = None, duration_s: float = SEGMENT_S) -> None:
        """The next one."""
        index = len(self._kept.segments)
        piece = self._put(f"segment-{index:05d}.m4s", segment_of(index) if body is None else body, "video/mp4")
        added = KeptSegment(piece=piece, duration_s=duration_s)
        self._kept = self._kept.model_copy(update={"segments": (*self._kept.segments, added)})
        told = SegmentReady(index=index, key=piece.key, duration_s=duration_s, playlist_key=self._key("playlist.m3u8"))
        self.lease.keep(self._kept, told)

    def finish(self, video: bytes = VIDEO) -> None:
        named = [self._put("video.mp4", video, "video/mp4"), self._put("report.json", b"{}", "application/json")]
        keys = {"video_key": named[0].key, "report_key": named[1].key, "playlist_key": None}
        job_id = self.lease.job_id
        result = Result(
            job_id=job_id,
            attempt=self.lease.attempt,
            request=Client(self._redis).job(job_id).request(),
            pieces=self._pieces,
            **keys,
        )
        marker = result_key(job_id)
        self._store.put_once(marker, result.model_dump_json().encode(), content_type="application/json")
        told = Finished(attempt=self.lease.attempt, store_url="file:///s", result_key=marker, **keys)
        self.lease.finish(told, {"result_key": marker})

    def _key(self, name: str) -> str:
        return f"{self.lease.job_id}/attempts/{self.lease.attempt}/{name}"

    def _put(self, name: str, body: bytes, content_type: str) -> StoredPiece:
        put = self._store.put(self._key(name), body, content_type=content_type)
        piece = StoredPiece(key=put.key, size_bytes=put.size_bytes, sha256=put.sha256)
        self._pieces.append(piece)
        return piece
