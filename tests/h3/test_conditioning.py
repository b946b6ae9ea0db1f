import json
import re
from dataclasses import replace

import pytest
import torch

from h3.conditioning import Conditioning, load_conditioning
from h3.errors import CheckpointError, ConfigError
from h3.sampler import draw_noise
from h3.sequence import Anchor, Geometry
from h3.tensor_file import write_tensors

GEOMETRY = Geometry(96, 64, 22)
BOTH = (Anchor.FIRST, Anchor.LAST)


def make_conditioning(anchors=BOTH):
    """Twelve rows of states; for each keyframe three of them are its vision block."""
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(12, 8, generator=generator).bfloat16()
    vision = tuple(range(4 * i + 1, 4 * i + 4) for i in range(len(anchors)))
    keyframes = tuple(torch.randn(24, 1, 4, 6, generator=generator) for _ in anchors)
    return Conditioning(states, vision, anchors, keyframes)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states.safetensors"


class TestFile:
    @pytest.mark.parametrize("anchors", [(), (Anchor.FIRST,), (Anchor.LAST,), BOTH], ids=len)
    def test_what_is_saved_is_loaded(self, path, anchors):
        saved = make_conditioning(anchors)
        saved.save(path)
        loaded = load_conditioning(path)
        assert torch.equal(loaded.states, saved.states)
        assert loaded.states.dtype == torch.bfloat16
        assert (loaded.vision, loaded.anchors) == (saved.vision, anchors)
        assert all(map(torch.equal, loaded.keyframes, saved.keyframes))
        assert len(loaded.keyframes) == len(anchors)
        assert loaded.layout(GEOMETRY) == saved.layout(GEOMETRY)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    def test_states_alone_are_enough_and_keep_their_dtype(self, path, dtype):
        states = torch.arange(10).view(2, 5).to(dtype)
        write_tensors(path, {"states": states, "something": torch.zeros(1)}, {})
        loaded = load_conditioning(path)
        assert loaded.states.dtype == dtype
        assert torch.equal(loaded.states, states)
        assert (loaded.vision, loaded.anchors, loaded.keyframes) == ((), (), ())

    def test_only_what_is_wanted_is_left_behind(self, path):
        make_conditioning().save(path)
        assert [file.name for file in path.parent.iterdir()] == [path.name]


STATES = torch.zeros(12, 8)
FRAMES = torch.zeros(2, 24, 1, 4, 6)
TWO = {"anchors": '["first", "last"]', "vision": "[[1, 4], [5, 8]]"}
REFUSED = {
    "no states": ({"keyframes": FRAMES}, TWO, "lacks tensor states"),
    "flat states": ({"states": torch.zeros(12)}, {}, r"states is [12] float32, expected [tokens, text_dim]"),
    "batched states": ({"states": torch.zeros(1, 12, 8)}, {}, "states is [1, 12, 8] float32, expected"),
    "no rows": ({"states": torch.zeros(0, 8)}, {}, "states is [0, 8] float32, expected"),
    "integers": ({"states": STATES.int()}, {}, "states is [12, 8] int32, expected"),
    "fp64": ({"states": STATES.double()}, {}, "states is [12, 8] float64, expected"),
    "fp8": ({"states": STATES.to(torch.float8_e4m3fn)}, {}, "states is [12, 8] float8_e4m3fn, expected"),
    "bf16 keyframes": ({"keyframes": FRAMES.bfloat16()}, TWO, "keyframes is [2, 24, 1, 4, 6] bfloat16, expected"),
    "flat keyframes": ({"keyframes": FRAMES[:, 0]}, TWO, "keyframes is [2, 1, 4, 6] float32, expected"),
    "two frames each": (
        {"keyframes": FRAMES.expand(2, 24, 2, 4, 6)},
        TWO,
        "keyframes is [2, 24, 2, 4, 6] float32, expected [2, channels, 1, height, width] float32",
    ),
    "a keyframe too few": ({"keyframes": FRAMES[:1]}, TWO, "keyframes is [1, 24, 1, 4, 6]"),
    "no keyframes": ({}, TWO, "2 anchors without keyframes"),
    "no anchors": ({"keyframes": FRAMES}, {}, "keyframes without anchors"),
    "a block too few": ({"keyframes": FRAMES}, TWO | {"vision": "[[1, 4]]"}, "2 anchors and 1 vision blocks"),
    "doubled": ({"keyframes": FRAMES}, TWO | {"anchors": '["last", "last"]'}, "the anchors last, last"),
    "backwards": ({"keyframes": FRAMES}, TWO | {"anchors": '["last", "first"]'}, "the anchors last, first"),
    "unknown": ({"keyframes": FRAMES}, TWO | {"anchors": '["first", "middle"]'}, "metadata that h3render did not"),
    "no list": ({"keyframes": FRAMES}, TWO | {"anchors": "2"}, "metadata that h3render did not"),
    "no JSON": ({"keyframes": FRAMES}, TWO | {"vision": "["}, "metadata that h3render did not"),
    "deep": ({"keyframes": FRAMES}, TWO | {"vision": "[" * 100_000}, "metadata that h3render did not"),
    "steps": ({"keyframes": FRAMES}, TWO | {"vision": "[[1, 4, 2], [5, 8, 1]]"}, "metadata that h3render did not"),
    "fractions": ({"keyframes": FRAMES}, TWO | {"vision": "[[1, 4.5], [5, 8]]"}, "metadata that h3render did not"),
}


class TestRefusing:
    @pytest.mark.parametrize(("tensors", "metadata", "text"), REFUSED.values(), ids=REFUSED)
    def test_what_is_not_as_it_is_written_is_told(self, path, tensors, metadata, text):
        with_states = tensors if text.startswith("lacks") else {"states": STATES} | tensors
        write_tensors(path, {name: tensor.contiguous() for name, tensor in with_states.items()}, metadata)
        with pytest.raises(CheckpointError, match=re.escape(text)) as caught:
            load_conditioning(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 1000

    def test_a_file_that_is_cut_short_is_told(self, path):
        make_conditioning().save(path)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match="cut short in tensor keyframes"):
            load_conditioning(path)

    @pytest.mark.parametrize(
        "blocks", [[[1, 4], [3, 8]], [[5, 8], [1, 4]], [[1, 4], [5, 13]], [[-1, 4], [5, 8]]], ids=str
    )
    def test_vision_blocks_that_do_not_lie_in_order_in_the_states_are_refused_by_the_layout(self, path, blocks):
        write_tensors(path, {"states": STATES, "keyframes": FRAMES}, TWO | {"vision": json.dumps(blocks)})
        with pytest.raises(ConfigError, match="do not lie in order in 12 text rows"):
            load_conditioning(path).layout(GEOMETRY)

    def test_keyframes_of_another_size_are_refused_by_the_layout(self):
        conditioning = make_conditioning()
        with pytest.raises(ConfigError, match=re.escape("a keyframe has [4, 6] latents, the video [4, 4]")):
            conditioning.layout(replace(GEOMETRY, width=64))


def test_keyframes_are_held_just_short_of_clean_and_lie_in_the_order_of_their_anchors():
    conditioning = make_conditioning()
    noise = draw_noise(GEOMETRY, 24, 32, seed=1, keyframes=2)
    rows = conditioning.keyframe_rows(noise)
    assert rows.shape == (conditioning.layout(GEOMETRY).keyframe_tokens, 96)
    corner = rows[[0, 6], 0]  # channel 0, first row and column of each
    clean = torch.stack([frame[0, 0, 0, 0] for frame in conditioning.keyframes])
    drawn = torch.stack([frame[0, 0, 0, 0] for frame in noise.keyframes])
    assert torch.allclose(corner, 0.999 * clean + 0.001 * drawn, atol=1e-6)
    assert make_conditioning(()).keyframe_rows(noise) is None
