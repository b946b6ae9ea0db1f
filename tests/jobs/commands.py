"""The command in this process, and jobs that have a result."""

from typer.testing import CliRunner
from typer.testing import Result as Done

import h3render
from jobs.events import Finished
from jobs.lease import Lease
from jobs.pieces import StoredPiece
from jobs.request import ResolvedRequest
from jobs.result import Result, result_key
from jobs.store import Store

CONTENTS = {"video.mp4": b"a video", "report.json": b"{}", "init.mp4": b"a header", "segment-00000.m4s": b"a segment"}


def invoke(*arguments: object, code: int = 0) -> Done:
    """Run `h3render`; fails unless it exits with this code and says why in words."""
    done = CliRunner().invoke(h3render.app, list(map(str, arguments)), prog_name="h3render")
    assert done.exit_code == code, done.output + repr(done.exception)
    assert code == 0 or done.stderr.strip()
    return done


def commit(lease: Lease, request: ResolvedRequest, store: Store, store_url: str, *, streams: bool = False) -> Result:
    """Finish a claimed job with a result in the store, as a worker does."""
    prefix = f"{lease.job_id}/attempts/{lease.attempt}"
    stored = [
        store.put(f"{prefix}/{name}", body, content_type="application/octet-stream") for name, body in CONTENTS.items()
    ]
    result = Result(
        job_id=lease.job_id,
        attempt=lease.attempt,
        request=request,
        video_key=f"{prefix}/video.mp4",
        report_key=f"{prefix}/report.json",
        playlist_key=f"{prefix}/playlist.m3u8" if streams else None,
        pieces=[StoredPiece(key=one.key, size_bytes=one.size_bytes, sha256=one.sha256) for one in stored],
    )
    key = result_key(lease.job_id)
    store.put_once(key, result.model_dump_json().encode(), content_type="application/json")
    told = Finished(
        attempt=lease.attempt,
        store_url=store_url,
        result_key=key,
        **result.model_dump(include={"video_key", "report_key", "playlist_key"}),
    )
    lease.finish(told, {"result_key": key})
    return result
