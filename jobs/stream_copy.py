"""A copy of a stream that grows with it, for players that read files.

The playlist of the copy only ever grows, as RFC 8216 has it for events, whatever becomes of the attempt that makes the
stream. Another attempt may go on with the segments of an earlier one, and name them. Or it has begun anew: then what
was listed stays, as somebody has seen it, and the rest follows by its place, after a discontinuity and with a header of
its own. Both are of the same request and seed, and cut at the same frames.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from urllib.parse import unquote

from jobs.errors import StoreUnavailable
from jobs.file_store import write_whole
from jobs.store import Store

_HEADER = re.compile(r'#EXT-X-MAP:URI="([^"]*)"')
_DURATION = re.compile(r"#EXTINF:([0-9.]+),")


@dataclass(frozen=True, slots=True)
class _Segment:
    """One segment of the store's playlist, by keys."""

    header: str
    key: str
    duration_s: float


class StreamCopy:
    """Copies one job's stream into a folder."""

    def __init__(self, store: Store, job_id: str, folder: Path) -> None:
        self._store, self._job_id, self._folder = store, job_id, folder
        self._segments: list[_Segment] = []
        self._names: dict[str, str] = {}  # of files in the folder, by key
        self.path = folder / "playlist.m3u8"

    @property
    def length(self) -> int:
        """Segments that can be played."""
        return len(self._segments)

    def extend(self, playlist_key: str) -> Iterator[Path]:
        """Copy what a playlist of the store has beyond this one; the playlist here, each time it has grown by one.

        Raises StoreUnavailable.
        """
        for segment in self._read(playlist_key)[self.length :]:
            for key in (segment.header, segment.key):
                self._fetch(key)
            self._segments.append(segment)
            self._write(ended=False)
            yield self.path

    def end(self) -> None:
        """No more will come."""
        if self._segments:
            self._write(ended=True)

    def _read(self, playlist_key: str) -> list[_Segment]:
        if self._store.stat(playlist_key) is None:
            raise StoreUnavailable(
                f"{self._store.url(playlist_key)} does not exist: name the store that its worker writes to (--store)"
            )
        segments = list(parse_playlist(self._store.get(playlist_key).decode("utf-8", "replace"), playlist_key))
        strange = [key for one in segments for key in (one.header, one.key) if not key.startswith(f"{self._job_id}/")]
        if strange:
            raise StoreUnavailable(f"{self._store.url(playlist_key)} names {strange[0]!a}, which is not this job's")
        return segments

    def _fetch(self, key: str) -> None:
        if key not in self._names:
            name = f"{len(self._names):05d}{posixpath.splitext(key)[1]}"  # players go by the suffix
            self._store.fetch(key, self._folder / name)
            self._names[key] = name

    def _write(self, *, ended: bool) -> None:
        write_whole(self.path, [f"{line}\n".encode() for line in self._lines(ended)])

    def _lines(self, ended: bool) -> Iterator[str]:
        yield "#EXTM3U"
        yield "#EXT-X-VERSION:7"
        yield f"#EXT-X-TARGETDURATION:{max(1, *(ceil(segment.duration_s) for segment in self._segments))}"
        yield "#EXT-X-MEDIA-SEQUENCE:0"
        yield "#EXT-X-PLAYLIST-TYPE:EVENT"
        yield "#EXT-X-START:TIME-OFFSET=0"  # else a player that comes late begins near the end
        yield "#EXT-X-INDEPENDENT-SEGMENTS"
        header = ""
        for segment in self._segments:
            if segment.header != header:
                if header:
                    yield "#EXT-X-DISCONTINUITY"
                header = segment.header
                yield f'#EXT-X-MAP:URI="{self._names[header]}"'
            yield f"#EXTINF:{segment.duration_s:.6f},"
            yield self._names[segment.key]
        if ended:
            yield "#EXT-X-ENDLIST"


def parse_playlist(text: str, playlist_key: str) -> Iterator[_Segment]:
    """Of a playlist as workers write it: one header, then the segments."""
    header, duration_s = "", 0.0
    for line in text.splitlines():
        if match := _HEADER.match(line):
            header = _resolve(match[1], playlist_key)
        elif match := _DURATION.match(line):
            duration_s = float(match[1])
        elif line and not line.startswith("#"):
            yield _Segment(header, _resolve(line, playlist_key), duration_s)


def _resolve(uri: str, playlist_key: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(playlist_key), unquote(uri)))
