"""What `h3render sheet` draws of a video, and what it refuses."""

import av
import numpy as np
import pytest
from PIL import Image

from h3.cli import app
from h3.contact_sheet import GAP
from h3.mp4 import SegmentWriter, remux
from tests.in_process import call

WIDTH, HEIGHT, FRAMES = 64, 32, 22


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """From black to white."""
    folder = tmp_path_factory.mktemp("video")
    silence = np.zeros((2, 32_000), np.float32)
    writer = SegmentWriter(folder, width=WIDTH, height=HEIGHT, clip_lengths=(FRAMES,), audio=silence)
    levels = np.linspace(0, 255, FRAMES).round().astype(np.uint8)
    segment = writer.write(np.broadcast_to(levels[:, None, None, None], (FRAMES, HEIGHT, WIDTH, 3)).copy())
    remux(writer.header, [segment.path], folder / "video.mp4")
    return folder / "video.mp4"


@pytest.mark.parametrize(
    ("columns", "rows", "shown", "size"),
    [(4, 3, 12, (4, 3)), (6, 1, 6, (6, 1)), (1, 1, 1, (1, 1)), (5, 9, FRAMES, (5, 5)), (99, 1, FRAMES, (FRAMES, 1))],
)
def test_frames_go_evenly_from_the_first_to_the_last_in_reading_order(video, tmp_path, columns, rows, shown, size):
    path = tmp_path / "sheet.png"
    done = call(app, "sheet", str(video), str(path), "--columns", str(columns), "--rows", str(rows))
    assert done.stdout == f"{path}\n"
    with Image.open(path) as picture:
        sheet = np.asarray(picture).astype(int)
    across, down = size
    assert sheet.shape == (down * (HEIGHT + GAP) + GAP, across * (WIDTH + GAP) + GAP, 3)
    cells = [
        sheet[row * (HEIGHT + GAP) + GAP :, column * (WIDTH + GAP) + GAP :][:HEIGHT, :WIDTH]
        for row in range(down)
        for column in range(across)
    ]
    levels = np.linspace(0, 255, FRAMES)[np.linspace(0, FRAMES - 1, shown).round().astype(int)] if shown > 1 else [0]
    assert np.abs(np.array([cell.mean() for cell in cells[:shown]]) - levels).max() < 5
    assert all(cell.std() < 3 for cell in cells[:shown]), "a frame is cut or lies over another"
    assert all(cell.mean() < 30 for cell in cells[shown:]), "what is left over is paper"


def write_sound(path):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=32_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        frame.sample_rate = 32_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)


@pytest.mark.parametrize(
    ("name", "write", "sheet", "told"),
    [
        ("sound.mp4", write_sound, "sheet.png", "there is no picture in it"),
        ("text.mp4", lambda path: path.write_text("a kite" * 99), "sheet.png", "not a video that can be read"),
        ("none.mp4", lambda path: None, "sheet.png", "No such file or directory"),
        ("sound.mp4", write_sound, "sheet.tga", "name a picture that ends in .png"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(tmp_path, name, write, sheet, told):
    write(tmp_path / name)
    done = call(app, "sheet", str(tmp_path / name), str(tmp_path / sheet))
    assert done.exit_code == 2
    assert told in done.stderr
    assert (name if sheet.endswith("png") else sheet) in done.stderr
    assert not (tmp_path / sheet).exists()
