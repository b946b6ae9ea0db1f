"""Real encoders, muxers and demuxers. One short video is written once; most tests look at its files."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from h3.mp4 import AAC_FRAME, AudioPacket, Encoding, SegmentFile, SegmentWriter, deal_audio, remux
from h3.sequence import AUDIO_RATE_HZ, FPS
from jobs.playlist import PlaylistSegment, render_playlist

CLIPS = [17, 17, 22]
FRAMES = sum(CLIPS)
SAMPLES = round(FRAMES * AUDIO_RATE_HZ / FPS)
WIDTH, HEIGHT = 96, 64


def make_frames(first: int, count: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Smooth coloured waves that move."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        (128 + 80 * np.sin(x / 20 + i / 5), 128 + 80 * np.cos(y / 18 - i / 7), 128 + 60 * np.sin((x + y) / 30 + i / 9))
        for i in range(first, first + count)
    ]
    return np.stack([np.stack(wave, axis=-1) for wave in waves]).astype(np.uint8)


def make_audio(samples: int = SAMPLES) -> np.ndarray:
    """A 440 Hz tone, louder in the middle, so that only one offset fits; the right channel is the left one negated."""
    seconds = np.arange(samples) / AUDIO_RATE_HZ
    tone = np.sin(2 * np.pi * 440 * seconds) * np.exp(-(((seconds - 1.1) / 0.4) ** 2)) * 0.8
    return np.stack([tone, -tone]).astype(np.float32)


def make_writer(folder: Path, **changes) -> SegmentWriter:
    settings = {"width": WIDTH, "height": HEIGHT, "clip_lengths": CLIPS, "audio": make_audio()} | changes
    return SegmentWriter(folder, **settings)


def write_clips(writer: SegmentWriter, clips=CLIPS, width: int = WIDTH, height: int = HEIGHT) -> list[SegmentFile]:
    return [writer.write(make_frames(sum(clips[:i]), count, width, height)) for i, count in enumerate(clips)]


def join(target: Path, *pieces: Path) -> Path:
    target.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return target


@dataclass(frozen=True)
class Video:
    """The same video in its three forms."""

    header: Path
    segments: list[SegmentFile]
    joined: Path  # header and segments, byte after byte
    remuxed: Path


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Video:
    folder = tmp_path_factory.mktemp("video")
    writer = make_writer(folder)
    segments = write_clips(writer)
    paths = [segment.path for segment in segments]
    remux(writer.header, paths, folder / "video.mp4")
    return Video(writer.header, segments, join(folder / "joined.mp4", writer.header, *paths), folder / "video.mp4")


@pytest.fixture(params=["joined", "remuxed"])
def whole(request, video: Video) -> Path:
    return getattr(video, request.param)


def read_packets(path: Path, kind: str) -> list[av.Packet]:
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(**{kind: 0}) if packet.size]


def decode_pictures(path: Path, **options) -> np.ndarray:
    """[F, H, W, 3] uint8."""
    with av.open(str(path), **options) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def decode_audio(path: Path) -> np.ndarray:
    """[2, samples], placed by their timestamps; sample 0 plays with the first picture."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
    placed = np.zeros((2, frames[-1].pts + frames[-1].samples), dtype=np.float32)
    for frame in frames:
        placed[:, frame.pts : frame.pts + frame.samples] = frame.to_ndarray()
    return placed


def find_boxes(mp4: bytes) -> Iterator[tuple[str, bytes]]:
    start = 0
    while start < len(mp4):
        size, kind = struct.unpack_from(">I4s", mp4, start)
        yield kind.decode(), mp4[start + 8 : start + size]
        start += size


def list_boxes(mp4: bytes) -> list[str]:
    return [kind for kind, _ in find_boxes(mp4)]


def find_lag(sound: np.ndarray, reference: np.ndarray, reach: int = 2000) -> int:
    """Samples by which `sound` comes late."""
    padded = np.pad(sound, reach)[: len(reference) + 2 * reach]
    return int(np.argmax(np.correlate(padded, reference[: len(padded) - 2 * reach], mode="valid"))) - reach


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return 10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2))


# The boxes


def test_the_header_is_ftyp_and_moov_and_every_segment_one_fragment_of_both_tracks(video):
    assert list_boxes(video.header.read_bytes()) == ["ftyp", "moov"]
    for segment in video.segments:
        boxes = dict(find_boxes(segment.path.read_bytes()))
        assert list(boxes) == ["moof", "mdat"]
        assert list_boxes(boxes["moof"]) == ["mfhd", "traf", "traf"]


def test_fragments_are_numbered_from_one_without_a_gap(video):
    moofs = [dict(find_boxes(segment.path.read_bytes()))["moof"] for segment in video.segments]
    numbers = [struct.unpack(">II", dict(find_boxes(moof))["mfhd"])[1] for moof in moofs]
    assert numbers == [1, 2, 3]


def test_the_remuxed_file_has_its_index_before_the_media(video):
    boxes = list_boxes(video.remuxed.read_bytes())
    assert boxes.index("moov") < boxes.index("mdat")
    assert "moof" not in boxes


# Arrival


def test_the_header_is_there_before_the_first_clip_and_a_segment_plays_before_the_next_one(tmp_path):
    writer = make_writer(tmp_path)
    header = writer.header.read_bytes()
    for i, count in enumerate(CLIPS):
        frames = make_frames(sum(CLIPS[:i]), count)
        segment = writer.write(frames)
        decoded = decode_pictures(join(tmp_path / f"{i}.mp4", writer.header, segment.path))
        assert len(decoded) == count
        assert psnr(decoded, frames) > 35
    assert writer.header.read_bytes() == header


def test_segments_are_named_by_index_and_last_as_long_as_their_frames(video):
    assert [segment.path.name for segment in video.segments] == [f"segment-0000{i}.m4s" for i in range(3)]
    assert [segment.index for segment in video.segments] == [0, 1, 2]
    assert [segment.duration_s * FPS for segment in video.segments] == pytest.approx(CLIPS)


def test_a_clip_that_was_refused_can_be_written_in_its_right_form(tmp_path, video):
    writer = make_writer(tmp_path)
    with pytest.raises(ValueError, match="clip 0"):
        writer.write(make_frames(0, 3))
    assert writer.write(make_frames(0, 17)).path.read_bytes() == video.segments[0].path.read_bytes()


# The picture


def test_every_frame_is_there_at_24_frames_per_second(whole):
    with av.open(str(whole)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.codec_context.name, stream.pix_fmt) == (24, "h264", "yuv420p")
        times = [frame.pts * frame.time_base for frame in container.decode(stream)]
    assert times == [Fraction(i, FPS) for i in range(FRAMES)]


def test_pictures_come_in_playing_order_with_rising_timestamps(whole):
    packets = read_packets(whole, "video")
    assert [packet.pts for packet in packets] == [packet.dts for packet in packets]
    assert len({later.dts - sooner.dts for sooner, later in pairwise(packets)}) == 1


def test_each_clip_opens_with_an_idr_picture_and_has_no_other_key_frame(whole):
    keys = [i for i, packet in enumerate(read_packets(whole, "video")) if packet.is_keyframe]
    assert keys == [0, 17, 34]


def test_a_segment_opens_with_an_idr_nal_unit(video, tmp_path):
    for segment in video.segments:
        path = join(tmp_path / "one.mp4", video.header, segment.path)
        assert 5 in list_nal_types(bytes(read_packets(path, "video")[0]))


def list_nal_types(packet: bytes) -> list[int]:
    types, start = [], 0
    while start < len(packet):
        (size,) = struct.unpack_from(">I", packet, start)
        types.append(packet[start + 4] & 0x1F)
        start += 4 + size
    return types


def test_the_joined_segments_and_the_remuxed_file_show_the_same_pictures(video):
    np.testing.assert_array_equal(decode_pictures(video.joined), decode_pictures(video.remuxed))


def test_the_pictures_resemble_what_went_in(whole):
    assert psnr(decode_pictures(whole), make_frames(0, FRAMES)) > 35


def test_colours_are_tagged_and_converted_as_limited_range_bt709(whole):
    with av.open(str(whole)) as container:
        context = container.streams.video[0].codec_context
        tags = (context.color_range, context.color_primaries, context.color_trc, context.colorspace)
    assert tags == (1, 1, 1, 1)


def test_pure_red_has_the_bt709_code_values(tmp_path):
    writer = make_writer(tmp_path, clip_lengths=[1])
    red = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
    red[..., 0] = 255
    path = join(tmp_path / "red.mp4", writer.header, writer.write(red).path)
    with av.open(str(path)) as container:
        luma = next(container.decode(video=0)).to_ndarray()[:HEIGHT]
    assert abs(luma.mean() - 63) < 1  # 16 + 219 * 0.2126; with the matrix of BT.601 it would be 81


@pytest.mark.parametrize(("width", "height"), [(64, 64), (256, 160), (864, 480)])
def test_the_sizes_of_the_model_survive(tmp_path, width, height):
    writer = make_writer(tmp_path, width=width, height=height, clip_lengths=[5, 8], audio=make_audio(100))
    segments = write_clips(writer, [5, 8], width, height)
    remux(writer.header, [segment.path for segment in segments], tmp_path / "video.mp4")
    decoded = decode_pictures(tmp_path / "video.mp4")
    assert decoded.shape == (13, height, width, 3)
    assert psnr(decoded, make_frames(0, 13, width, height)) > 35


def test_frames_may_be_a_view_that_is_not_contiguous(tmp_path):
    writer = make_writer(tmp_path, clip_lengths=[3])
    frames = make_frames(0, 3)
    view = np.ascontiguousarray(frames.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    path = join(tmp_path / "view.mp4", writer.header, writer.write(view).path)
    assert psnr(decode_pictures(path), frames) > 35


def test_equal_input_gives_equal_bytes(tmp_path, video):
    """Many times over, because what x264 does wrong by default shows in one clip of fifty."""
    expected = [segment.path.read_bytes() for segment in video.segments]
    clips = np.split(make_frames(0, FRAMES), np.cumsum(CLIPS)[:-1])
    for _ in range(15):
        writer = make_writer(tmp_path)
        assert [writer.write(clip).path.read_bytes() for clip in clips] == expected


def test_a_coarser_encoding_is_smaller(tmp_path, video):
    coarse = make_writer(tmp_path, encoding=Encoding(crf=40)).write(make_frames(0, 17))
    assert coarse.path.stat().st_size < video.segments[0].path.stat().st_size


# The sound


def test_the_sound_goes_on_across_segments_without_a_gap_of_a_sample(whole):
    packets = read_packets(whole, "audio")
    assert packets[0].pts == -AAC_FRAME  # primes the decoder and isn't heard
    assert {later.pts - sooner.pts for sooner, later in pairwise(packets)} == {AAC_FRAME}


def test_the_sound_is_as_long_as_the_picture(whole):
    last = read_packets(whole, "audio")[-1]
    assert last.pts + last.duration == SAMPLES
    assert 0 <= decode_audio(whole).shape[1] - SAMPLES < AAC_FRAME


def test_the_sound_is_in_step_with_the_picture(whole):
    heard, played = decode_audio(whole), make_audio()
    for channel in (0, 1):
        assert abs(find_lag(heard[channel], played[channel])) < AUDIO_RATE_HZ // 1000
    assert np.corrcoef(heard[0, :SAMPLES], played[0])[0, 1] > 0.99


def test_a_segment_alone_has_the_sound_of_its_own_time(video, tmp_path):
    path = join(tmp_path / "second.mp4", video.header, video.segments[1].path)
    heard, played = decode_audio(path), make_audio()
    start, end = 17 * AUDIO_RATE_HZ // FPS, 34 * AUDIO_RATE_HZ // FPS
    assert abs(heard.shape[1] - end) <= AAC_FRAME
    # The first packet of any AAC stream only primes the decoder, so the middle is compared.
    inner = slice(start + 3 * AAC_FRAME, end - 3 * AAC_FRAME)
    assert np.corrcoef(heard[0, inner], played[0, inner])[0, 1] > 0.99


def test_a_packet_goes_to_the_clip_in_which_it_starts():
    starts = [-1024, 0, 1023, 4000, 7999, 8000]  # 3 frames last 4000 samples
    packets = [AudioPacket(b"", start, AAC_FRAME) for start in starts]
    assert deal_audio(packets, [3, 3, 5]) == [packets[:3], packets[3:5], packets[5:]]


@pytest.mark.parametrize("samples", [0, 100, SAMPLES - 1, SAMPLES + 1, SAMPLES + 30_000])
def test_sound_that_is_too_short_or_too_long_is_made_to_fit(tmp_path, samples):
    writer = make_writer(tmp_path, audio=make_audio(samples))
    path = join(tmp_path / "joined.mp4", writer.header, *(segment.path for segment in write_clips(writer)))
    last = read_packets(path, "audio")[-1]
    assert last.pts + last.duration == SAMPLES


# Playing it


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_player_of_the_playlist_sees_every_frame_so_far(video, tmp_path, count):
    playlist = video.header.parent / f"index-{count}.m3u8"
    listed = [PlaylistSegment(segment.path.name, segment.duration_s) for segment in video.segments[:count]]
    playlist.write_text(render_playlist(video.header.name, listed, ended=True))
    pictures = decode_pictures(playlist, format="hls")
    np.testing.assert_array_equal(pictures, decode_pictures(video.joined)[: sum(CLIPS[:count])])
    assert {later.pts - sooner.pts for sooner, later in pairwise(read_packets(playlist, "audio"))} == {AAC_FRAME}


def test_remuxing_leaves_the_pieces_and_nothing_else_beside_the_target(video, tmp_path):
    before = video.joined.read_bytes()
    remux(video.header, [segment.path for segment in video.segments], tmp_path / "video.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]
    assert join(tmp_path / "joined.mp4", video.header, *(s.path for s in video.segments)).read_bytes() == before


# What doesn't fit


@pytest.mark.parametrize(
    "frames",
    [
        make_frames(0, 16),
        make_frames(0, 17, width=64),
        make_frames(0, 17).astype(np.float32),
        make_frames(0, 17).transpose(0, 3, 1, 2),
    ],
    ids=["too few", "too narrow", "not uint8", "channels first"],
)
def test_frames_that_were_not_announced_are_refused_with_what_was(tmp_path, frames):
    with pytest.raises(ValueError, match=r"give uint8 \[17, 64, 96, 3\]"):
        make_writer(tmp_path).write(frames)
    assert [path.name for path in tmp_path.iterdir()] == ["init.mp4"]


def test_a_clip_after_the_last_one_is_refused(tmp_path):
    writer = make_writer(tmp_path, clip_lengths=[1])
    writer.write(make_frames(0, 1))
    with pytest.raises(ValueError, match="all 1 clips are written"):
        writer.write(make_frames(1, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 95}, "95x64"),
        ({"height": 0}, "96x0"),
        ({"clip_lengths": []}, "at least one clip"),
        ({"clip_lengths": [17, 0]}, "at least one frame"),
        ({"audio": make_audio().T}, "float32"),
        ({"audio": make_audio().astype(np.float64)}, "float64"),
        ({"audio": np.full((2, SAMPLES), np.nan, np.float32)}, "NaN"),
    ],
)
def test_a_video_that_can_not_be_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_writer(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []
