import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from h3.errors import ConfigError
from h3.keyframes import MOST_PIXELS, open_picture, prepare

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
ORIENTATION = 0x0112  # the EXIF tag
LANCZOS = Image.Resampling.LANCZOS


@pytest.fixture
def photo():
    """Smooth and of no symmetry, 80 x 60."""
    x, y = np.meshgrid(np.linspace(0, 1, 80), np.linspace(0, 1, 60))
    pixels = np.stack([x * 255, y * 255, (x * y) ** 2 * 255], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def quarters():
    """Red and green above, blue and white below; 64 x 32."""
    picture = Image.new("RGB", (64, 32))
    for place, colour in (((0, 0), RED), ((32, 0), GREEN), ((0, 16), BLUE), ((32, 16), WHITE)):
        picture.paste(colour, (*place, place[0] + 32, place[1] + 16))
    return picture


def corners(pixels):
    """Colours of the four corners in reading order."""
    return [tuple(pixels[y, x].tolist()) for y in (0, -1) for x in (0, -1)]


class TestPreparing:
    def test_a_picture_of_the_videos_size_is_left_as_it_is(self, photo):
        for cover in (False, True):
            pixels = prepare(photo, 80, 60, cover=cover)
            assert (pixels.dtype, pixels.shape) == (torch.uint8, (60, 80, 3))
            assert np.array_equal(pixels, photo)

    @pytest.mark.parametrize("size", [(64, 64), (160, 32), (96, 192)])
    def test_the_first_one_is_stretched(self, photo, size):
        pixels = prepare(photo, *size, cover=False)
        assert np.array_equal(pixels, photo.resize(size, LANCZOS))

    @pytest.mark.parametrize(
        ("size", "scaled", "corner"),
        [
            ((64, 64), (85, 64), (10, 0)),
            ((160, 32), (160, 120), (0, 44)),
            ((96, 192), (256, 192), (80, 0)),
            ((96, 64), (96, 72), (0, 4)),
            ((128, 96), (128, 96), (0, 0)),
        ],
    )
    def test_a_second_one_covers_the_canvas_and_keeps_its_middle(self, photo, size, scaled, corner):
        left, top = corner
        expected = photo.resize(scaled, LANCZOS).crop((left, top, left + size[0], top + size[1]))
        assert np.array_equal(prepare(photo, *size, cover=True), expected)

    def test_covering_never_leaves_an_edge_open(self):
        white = {(w, h): Image.new("RGB", (w, h), "white") for w in (8, 31, 97, 640) for h in (8, 33, 101, 480)}
        for picture in white.values():
            for size in ((64, 96), (96, 64), (160, 96)):
                assert (prepare(picture, *size, cover=True) == 255).all(), picture.size

    def test_a_picture_too_long_to_cover_is_refused_before_it_takes_memory(self):
        line = Image.new("RGB", (60_000, 2))
        assert prepare(line, 864, 480, cover=False).shape == (480, 864, 3)
        with pytest.raises(ConfigError, match="60000x2 pixels is too long to cover 864x480"):
            prepare(line, 864, 480, cover=True)

    def test_what_is_handed_out_can_be_written(self, photo):
        prepare(photo, 80, 60, cover=False).zero_()
        assert np.asarray(photo).any()


UPRIGHT = (RED, GREEN, BLUE, WHITE)
TURNED = {  # how the corners of a picture with that tag are to be seen
    1: UPRIGHT,
    2: (GREEN, RED, WHITE, BLUE),
    3: (WHITE, BLUE, GREEN, RED),
    4: (BLUE, WHITE, RED, GREEN),
    5: (RED, BLUE, GREEN, WHITE),
    6: (BLUE, RED, WHITE, GREEN),
    7: (WHITE, GREEN, BLUE, RED),
    8: (GREEN, WHITE, RED, BLUE),
}


class TestOrientation:
    @pytest.mark.parametrize("tag", TURNED)
    def test_it_is_as_the_camera_says(self, tmp_path, tag):
        exif = Image.Exif()
        exif[ORIENTATION] = tag
        path = tmp_path / "photo.png"
        quarters().save(path, exif=exif)
        picture = open_picture(path)
        assert corners(np.asarray(picture)) == list(TURNED[tag])
        assert picture.size == ((64, 32) if tag <= 4 else (32, 64))
        # Already upright: it is not turned a second time.
        assert corners(prepare(picture, *picture.size, cover=False)) == list(TURNED[tag])

    @pytest.mark.filterwarnings("ignore")  # Pillow warns of it
    @pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
    def test_exif_that_cannot_be_read_turns_nothing(self, tmp_path, suffix):
        path = tmp_path / f"photo.{suffix}"
        quarters().save(path, exif=b"Exif\0\0no EXIF at all", quality=95)
        picture = open_picture(path)
        assert picture.size == (64, 32)
        assert prepare(picture, 64, 32, cover=False).shape == (32, 64, 3)

    def test_a_picture_that_was_never_in_a_file_is_turned_too(self):
        picture = quarters()
        picture.getexif()[ORIENTATION] = 6
        assert corners(prepare(picture, 32, 64, cover=False)) == list(TURNED[6])


class TestModes:
    @pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"])
    def test_every_mode_becomes_rgb(self, mode):
        source = Image.new("RGB", (4, 4), "white")
        pixels = prepare(
            Image.merge("LAB", source.convert("RGB").split()) if mode == "LAB" else source.convert(mode),
            4,
            4,
            cover=False,
        )
        assert pixels.shape == (4, 4, 3)
        assert mode == "LAB" or (pixels >= 254).all()

    @pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
    def test_what_is_transparent_becomes_black(self, tmp_path, suffix):
        picture = Image.new("RGBA", (3, 1))
        for x, alpha in enumerate((0, 128, 255)):
            picture.putpixel((x, 0), (*RED, alpha))
        picture.save(tmp_path / f"logo.{suffix}", **({"lossless": True, "exact": True} if suffix == "webp" else {}))
        found = np.asarray(open_picture(tmp_path / f"logo.{suffix}"))
        assert found.tolist() == [[[0, 0, 0], [128, 0, 0], [255, 0, 0]]]

    def test_a_palette_with_a_transparent_colour_and_grey_with_alpha_too(self, tmp_path):
        palette = Image.new("P", (2, 1))
        palette.putpalette([*RED, *GREEN])
        palette.putpixel((1, 0), 1)
        palette.save(tmp_path / "a.png", transparency=0)
        palette.save(tmp_path / "b.png", transparency=bytes([0, 255]))
        palette.save(tmp_path / "c.gif", transparency=0)
        for name in ("a.png", "b.png", "c.gif"):
            assert np.asarray(open_picture(tmp_path / name)).tolist() == [[[0, 0, 0], [0, 255, 0]]], name
        grey = Image.new("LA", (2, 1), (200, 0))
        grey.putpixel((1, 0), (200, 255))
        grey.save(tmp_path / "d.png")
        assert np.asarray(open_picture(tmp_path / "d.png")).tolist() == [[[0] * 3, [200] * 3]]

    @pytest.mark.parametrize("suffix", ["png", "tiff"])
    def test_grey_of_16_bits_keeps_its_tones(self, tmp_path, suffix):
        tones = np.array([[0, 257, 32_768, 65_535]], dtype=np.uint16)
        Image.fromarray(tones).save(tmp_path / f"scan.{suffix}")
        assert np.asarray(open_picture(tmp_path / f"scan.{suffix}"))[0, :, 0].tolist() == [0, 1, 128, 255]

    def test_colour_of_16_bits_keeps_its_tones(self, tmp_path):
        tones = np.array([[[0, 257, 65_535], [32_768, 1, 2]]], dtype=">u2")
        (tmp_path / "scan.png").write_bytes(png(2, 1, tones.tobytes(), bits=16, colour=2))
        assert np.asarray(open_picture(tmp_path / "scan.png")).tolist() == [[[0, 1, 255], [128, 0, 0]]]

    def test_numbers_without_a_known_white_are_refused(self, tmp_path):
        for values in (np.array([[0.5]], dtype=np.float32), np.array([[70_000]], dtype=np.int32)):
            Image.fromarray(values).save(tmp_path / "data.tiff")
            with pytest.raises(ConfigError, match=r"data.tiff: .* no known white: save it with 8 or 16 bits"):
                open_picture(tmp_path / "data.tiff")

    def test_of_an_animation_the_first_frame_is_taken(self, tmp_path):
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
        for name in ("a.gif", "b.png", "c.webp", "d.tiff"):
            options = {"lossless": True} if name.endswith("webp") else {}
            frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
            assert corners(np.asarray(open_picture(tmp_path / name))) == [RED] * 4, name


def png(width, height, pixels, bits=8, colour=2):
    """A PNG file of rows of raw pixels."""
    size = len(pixels) // height
    rows = b"".join(b"\0" + pixels[y * size : (y + 1) * size] for y in range(height))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    body = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in [*chunks, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + body


class TestBrokenFiles:
    @pytest.mark.parametrize(
        "content", [b"", b"not a picture", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n"]
    )
    def test_what_is_no_picture_is_refused_with_what_is_taken(self, tmp_path, content):
        path = tmp_path / "notes.png"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"notes.png: no picture, or of an unknown kind: convert it to JPEG, PNG"):
            open_picture(path)

    def test_a_file_that_is_missing_or_a_folder_is_named(self, tmp_path):
        for path in (tmp_path / "nothing.png", tmp_path):
            with pytest.raises(ConfigError, match=f"{path}: not a file that can be read"):
                open_picture(path)

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
    @pytest.mark.filterwarnings("ignore")  # Pillow warns of what it reads around
    def test_damage_is_refused_or_read_around_and_never_anything_else(self, tmp_path, photo, kind):
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        file = io.BytesIO()
        photo.save(file, kind, **({} if kind in ("GIF", "BMP") else {"exif": exif}))
        whole = file.getvalue()
        random = np.random.default_rng(0)
        damaged = [whole[: len(whole) * part // 40] for part in range(40)]
        for _ in range(60):
            flipped = bytearray(whole)
            for place in random.integers(0, min(len(whole), random.choice([40, 400, 10**6])), size=3):
                flipped[place] = random.integers(256)
            damaged.append(bytes(flipped))
        path = tmp_path / "photo"
        refusals = []
        for content in damaged:
            path.write_bytes(content)
            try:
                open_picture(path)
            except ConfigError as exc:
                refusals.append(str(exc))
        assert len(refusals) >= 30  # most of those that are cut short
        assert all(refusal.startswith(f"{path}: ") for refusal in refusals)

    def test_a_picture_cut_short_is_refused_as_damaged(self, tmp_path, photo):
        for name in ("photo.jpg", "photo.png"):
            photo.save(tmp_path / name)
            (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-500])
            with pytest.raises(ConfigError, match=f"{name}: a damaged picture .*: save it anew"):
                open_picture(tmp_path / name)

    @pytest.mark.parametrize("pixels", [MOST_PIXELS, 100 * 10**6, 10**9])
    def test_one_that_would_fill_the_memory_is_refused_from_its_header(self, tmp_path, pixels):
        (tmp_path / "bomb.png").write_bytes(png(pixels // 1000 + 1, 1000, b"\0" * 1000))
        with pytest.raises(ConfigError, match=r"bomb.png: more than 64 megapixels: scale the picture down"):
            open_picture(tmp_path / "bomb.png")
