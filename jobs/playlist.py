"""The HLS playlist of a video that is still being made. Text only: it reads no file and knows no store.

Source: RFC 8216. EXT-X-MAP in a playlist that isn't I-frames-only needs version 6; fragmented MP4 is commonly given
as 7, what Apple's own tools write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class PlaylistSegment:
    """A segment as a player finds it."""

    name: str  # URI, relative to the playlist
    duration_s: float


def render_playlist(header: str, segments: Sequence[PlaylistSegment], *, ended: bool) -> str:
    """Render the media playlist of the segments so far; `ended` tells players that no more will come.

    header  URI of the initialisation segment, relative to the playlist
    """
    lines = [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        f"#EXT-X-TARGETDURATION:{_target_duration_s(segments)}",
        "#EXT-X-MEDIA-SEQUENCE:0",
        "#EXT-X-PLAYLIST-TYPE:EVENT",
        "#EXT-X-START:TIME-OFFSET=0",  # else a player that comes late begins near the end
        "#EXT-X-INDEPENDENT-SEGMENTS",
        f'#EXT-X-MAP:URI="{header}"',
        *(f"#EXTINF:{segment.duration_s:.6f},\n{segment.name}" for segment in segments),
    ]
    return "\n".join([*lines, "#EXT-X-ENDLIST"] if ended else lines) + "\n"


def _target_duration_s(segments: Sequence[PlaylistSegment]) -> int:
    # At least 1: players derive their reload interval from it, and an EVENT playlist may start out empty.
    return max([1, *(ceil(segment.duration_s) for segment in segments)])
