"""Writes a video that arrives clip by clip as fragmented MP4, and joins the pieces into one ordinary MP4 file.

Every clip is muxed on its own and closed: an open muxer keeps back the last packets until it has seen the next ones,
so a segment would wait for the clip after it. What a muxer of its own can't know, it is told: its fragment's number
(`fragment_index`), that its timestamps go on from earlier fragments (`frag_discont`), and not to move them
(`avoid_negative_ts`). Only its moof and mdat boxes are kept; `init.mp4` has the ftyp and moov for all of them.

Each clip also has an H.264 encoder of its own, so it opens with an IDR picture and refers to no other clip; without
B-frames, decoding order is playing order. The sound is encoded once, before the first clip, and only its packets
are dealt out.
"""

import shutil
import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.stream import Stream
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from h3.sequence import AUDIO_RATE_HZ, FPS

AAC_FRAME = 1024  # samples per packet

_BT709_MATRIX = 1  # AVCOL_SPC_BT709. PyAV's `Colorspace` has swscale's numbers, which only agree by chance
_FRAGMENT = "frag_custom+empty_moov+default_base_moof+skip_trailer"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How picture and sound are compressed."""

    crf: int = 18  # x264's constant quality: 0 lossless, 51 worst
    preset: str = "veryfast"
    threads: int = 4  # fixed: x264's output depends on it, and beyond 4 a clip of 17 frames gains nothing
    audio_bits_per_s: int = 192_000


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One clip on disk. Playable right after `init.mp4`."""

    index: int  # 0-based, in playing order
    path: Path
    duration_s: float


@dataclass(frozen=True, slots=True)
class AudioPacket:
    """A piece of the AAC stream."""

    payload: bytes
    start: int  # in samples from the first picture; negative in the first packet, which only primes the decoder
    duration: int  # samples: AAC_FRAME, or less in the last one


class SegmentWriter:
    """Turns clips of pictures into `init.mp4` and `segment-00000.m4s`, `segment-00001.m4s`, ... in `folder`.

    clip_lengths  frames of each clip that will come, e.g. [17, 17, 22]
    audio         [2, S] float32 at 32 kHz in [-1, 1], for the whole video; cut or filled with silence to its length

    `header` is complete when the constructor returns, a segment when `write` does. Only one clip is in memory at a
    time. Equal input gives equal bytes, as long as FFmpeg and x264 are the same. Raises ValueError if the input
    doesn't fit what was announced.
    """

    def __init__(
        self,
        folder: Path,
        *,
        width: int,
        height: int,
        clip_lengths: Sequence[int],
        audio: NDArray[np.float32],
        encoding: Encoding | None = None,
    ) -> None:
        _check_size(width, height)
        _check_clip_lengths(clip_lengths)
        self._folder = folder
        self._width, self._height = width, height
        self._clip_lengths = tuple(clip_lengths)
        self._encoding = encoding or Encoding()
        self._audio = _encode_audio(audio, sum(clip_lengths), self._encoding.audio_bits_per_s)
        self._audio_of_clip = deal_audio(self._audio, clip_lengths)
        self._reformatter = VideoReformatter()
        self._written = 0
        self.header = folder / "init.mp4"
        self.header.write_bytes(self._make_header())

    def skip(self, clips: int) -> None:
        """Leave out the next clips: a writer of equal input has written them."""
        self._written += clips

    def write(self, frames: NDArray[np.uint8]) -> SegmentFile:
        """Write the next clip, complete with its sound.

        frames  [F, H, W, 3] uint8 RGB, F as announced in `clip_lengths`
        """
        index = self._written
        self._check_clip(frames)
        segment = SegmentFile(index, self._folder / f"segment-{index:05d}.m4s", len(frames) / FPS)
        segment.path.write_bytes(self._make_fragment(index, frames))
        self._written += 1
        return segment

    def _check_clip(self, frames: NDArray[np.uint8]) -> None:
        if self._written == len(self._clip_lengths):
            raise ValueError(f"all {self._written} clips are written; start a new SegmentWriter for another video")
        expected = (self._clip_lengths[self._written], self._height, self._width, 3)
        if frames.shape != expected or frames.dtype != np.uint8:
            raise ValueError(
                f"clip {self._written} is {frames.dtype} {list(frames.shape)}; "
                f"give uint8 {list(expected)} (frames, height, width, RGB), as announced to the SegmentWriter"
            )

    def _make_header(self) -> bytes:
        # delay_moov: the muxer must see the priming packet first, or the edit list that hides it is missing.
        sink = BytesIO()
        with _open_muxer(sink, movflags=f"{_FRAGMENT}+delay_moov") as container:
            self._add_video(container)
            sound = self._add_audio(container)
            container.mux(_as_av_packet(self._audio[0], sound, shift=0))
        return _keep_boxes(sink.getvalue(), b"ftyp", b"moov")

    def _make_fragment(self, index: int, frames: NDArray[np.uint8]) -> bytes:
        sink = BytesIO()
        with _open_muxer(
            sink,
            movflags=f"{_FRAGMENT}+frag_discont",
            fragment_index=str(index + 1),
            avoid_negative_ts="disabled",
        ) as container:
            picture = self._add_video(container)
            sound = self._add_audio(container)
            for frame in self._convert(frames, first=sum(self._clip_lengths[:index])):
                container.mux(picture.encode(frame))
            container.mux(picture.encode(None))
            # A file's time can't be negative: it begins with the priming packet, and the edit list in init.mp4
            # starts the playback after it.
            shift = -self._audio[0].start
            container.mux([_as_av_packet(packet, sound, shift) for packet in self._audio_of_clip[index]])
        return _keep_boxes(sink.getvalue(), b"moof", b"mdat")

    def _convert(self, frames: NDArray[np.uint8], first: int) -> Iterator[av.VideoFrame]:
        for number, pixels in enumerate(frames, start=first):
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame = self._reformatter.reformat(
                rgb,
                format="yuv420p",
                dst_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.MPEG,
                threads=1,
            )
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            yield frame

    def _add_video(self, container: OutputContainer) -> VideoStream:
        options = {
            "preset": self._encoding.preset,
            "crf": str(self._encoding.crf),
            "bf": "0",
            "sc_threshold": "0",
            # Else equal clips of widths like 96 or 160 differ, 1 in 50, with one thread too: x264's SIMD for mbtree.
            "x264-params": "cpu-independent=1",
        }
        stream = container.add_stream("libx264", rate=FPS, options=options, width=self._width, height=self._height)
        context = stream.codec_context
        context.pix_fmt = "yuv420p"
        context.thread_count = self._encoding.threads
        context.thread_type = "FRAME"  # PyAV's default cuts pictures into slices, which costs up to 9 % in size
        context.color_range = ColorRange.MPEG
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.colorspace = _BT709_MATRIX
        return stream

    def _add_audio(self, container: OutputContainer) -> AudioStream:
        # This stream's encoder only describes the packets; they were encoded up front with the same settings.
        bits_per_s = self._encoding.audio_bits_per_s
        return container.add_stream("aac", rate=AUDIO_RATE_HZ, layout="stereo", bit_rate=bits_per_s)


def deal_audio(packets: Sequence[AudioPacket], clip_lengths: Sequence[int]) -> list[list[AudioPacket]]:
    """Give each packet to the clip in which it starts, and the priming packet to the first."""
    ends = [frames * AUDIO_RATE_HZ for frames in accumulate(clip_lengths)]  # in samples * FPS, to stay exact
    clips: list[list[AudioPacket]] = [[] for _ in clip_lengths]
    for packet in packets:
        clips[bisect_right(ends, packet.start * FPS)].append(packet)
    return clips


def remux(init: Path, segments: Sequence[Path], target: Path) -> None:
    """Join a header and all its segments into an ordinary MP4 at `target`, its index in front. Nothing is re-encoded.

    The pieces are read once, in order, and left as they are; whoever ships and deletes them must wait, or keep copies.
    """
    with tempfile.TemporaryFile(dir=target.parent) as joined:
        for piece in (init, *segments):
            with piece.open("rb") as source:
                shutil.copyfileobj(source, joined)
        joined.seek(0)
        with (
            av.open(joined, "r", format="mp4") as source_container,
            av.open(str(target), "w", format="mp4", options={"movflags": "faststart"}) as target_container,
        ):
            _copy_packets(source_container, target_container)


def _copy_packets(source: InputContainer, target: OutputContainer) -> None:
    copies = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
    for packet in source.demux():
        if packet.dts is None:  # PyAV ends each stream with an empty packet
            continue
        packet.stream = copies[packet.stream_index]
        target.mux(packet)


def _encode_audio(audio: NDArray[np.float32], frames: int, bits_per_s: int) -> list[AudioPacket]:
    samples = _fit_audio(audio, round(Fraction(frames * AUDIO_RATE_HZ, FPS)))
    encoder = av.AudioCodecContext.create("aac", "w")
    encoder.sample_rate = AUDIO_RATE_HZ
    encoder.layout = "stereo"
    encoder.format = "fltp"
    encoder.bit_rate = bits_per_s
    packets = [packet for frame in _cut_audio(samples) for packet in encoder.encode(frame)] + encoder.encode(None)
    # Optional in PyAV's types, but an encoder sets both.
    return [AudioPacket(bytes(packet), cast(int, packet.pts), cast(int, packet.duration)) for packet in packets]


def _cut_audio(samples: NDArray[np.float32]) -> Iterator[av.AudioFrame]:
    for start in range(0, samples.shape[1], AAC_FRAME):
        piece = np.ascontiguousarray(samples[:, start : start + AAC_FRAME])
        frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = AUDIO_RATE_HZ, start, Fraction(1, AUDIO_RATE_HZ)
        yield frame


def _fit_audio(audio: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    if audio.ndim != 2 or audio.shape[0] != 2 or audio.dtype != np.float32:
        raise ValueError(
            f"the sound is {audio.dtype} {list(audio.shape)}; give float32 [2, samples] at {AUDIO_RATE_HZ} Hz"
        )
    if not np.isfinite(audio).all():
        raise ValueError("the sound has NaN or infinite samples, which AAC can't encode; look for the cause upstream")
    cut = audio[:, :samples]
    return np.pad(cut, ((0, 0), (0, samples - cut.shape[1])))


def _as_av_packet(
    packet: AudioPacket, stream: AudioStream, shift: int
) -> "av.Packet[Stream]":  # quoted: generic only in PyAV's stubs
    copy: av.Packet[Stream] = av.Packet(packet.payload)
    copy.pts = copy.dts = packet.start + shift
    copy.duration, copy.time_base, copy.stream = packet.duration, Fraction(1, AUDIO_RATE_HZ), stream
    return copy


def _open_muxer(sink: BytesIO, **options: str) -> OutputContainer:
    return av.open(sink, "w", format="mp4", options=options)


def _keep_boxes(mp4: bytes, *kinds: bytes) -> bytes:
    return b"".join(mp4[start:end] for kind, start, end in _find_boxes(mp4) if kind in kinds)


def _find_boxes(mp4: bytes) -> Iterator[tuple[bytes, int, int]]:
    start = 0
    while start < len(mp4):
        size, kind = struct.unpack_from(">I4s", mp4, start)
        yield kind, start, start + size
        start += size


def _check_size(width: int, height: int) -> None:
    if min(width, height) < 2 or width % 2 or height % 2:
        raise ValueError(f"size {width}x{height} can't be encoded as yuv420p; give even numbers of pixels")


def _check_clip_lengths(clip_lengths: Sequence[int]) -> None:
    if not clip_lengths or min(clip_lengths) < 1:
        raise ValueError(f"clip lengths {list(clip_lengths)}; give at least one clip, each with at least one frame")
