"""The judge is right about videos whose content is known, and says so where a video is not what a prompt asks for."""

from random import Random

import numpy as np
import pytest

from tests.quality.drawn import SIZE, write_drawn, write_video
from tests.quality.judge import UNCLEAR, Seen, judge, listen, look, name_shape, said, wrong
from tools.demo_model.clips import draw, sample_clips, sound
from tools.demo_model.scenes import COMPLETE_TEMPLATES, FIELDS, TEMPLATES, WORDS, Scene, all_scenes, caption

SCENES = Random(5).sample(all_scenes(), 24)
SCENE = Scene("circle", "red", "blue", "right", "large", "quickly", "low", "left")
FULL = COMPLETE_TEMPLATES[1]


def words_of(scene: Scene) -> dict[str, str]:
    return {name: getattr(scene, name) for name in FIELDS}


def test_every_scene_is_named_as_it_was_drawn():
    clips = sample_clips(SCENES, SIZE, seed=5)
    frames = range(0, SIZE.frames, 19)  # three are enough to tell where it goes
    for number, scene in enumerate(SCENES):
        clip = clips.rows(slice(number, number + 1))
        seen = look((draw(clip, frames)[0].permute(1, 2, 3, 0) * 255).round().byte().numpy())
        heard = listen(sound(clip, range(SIZE.audio_latents))[0].numpy(), 32_000)
        assert seen | heard == words_of(scene)


def test_it_reads_the_files_that_the_product_makes(tmp_path):
    for number, scene in enumerate(SCENES[:3]):
        path = write_drawn(tmp_path / str(number), sample_clips([scene], SIZE, seed=number))
        assert judge(path) == Seen(**words_of(scene))


def test_noise_and_silence_are_nothing(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (39, 160, 256, 3), dtype=np.uint8)
    seen = judge(write_video(tmp_path, SIZE, pictures, np.zeros((2, 52_000), np.float32)))
    assert {seen.shape, seen.colour, seen.direction, seen.pitch, seen.side} == {UNCLEAR}


def test_hiss_has_no_pitch_and_an_even_sound_no_side():
    hiss = np.random.default_rng(0).normal(0, 0.1, (2, 52_000)).astype(np.float32)
    assert listen(hiss, 32_000) == {"pitch": UNCLEAR, "side": UNCLEAR}


@pytest.mark.parametrize("field", FIELDS)
def test_a_video_of_anything_else_is_wrong_in_just_that(field):
    seen = Seen(**words_of(SCENE))
    other = next(word for word in WORDS[field] if word not in (SCENE.colour, getattr(SCENE, field)))
    asked = caption(Scene(**words_of(SCENE) | {field: other}), FULL)
    assert wrong(caption(SCENE, FULL), seen) == {}
    assert wrong(asked, seen) == {field: getattr(SCENE, field)}


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_what_a_caption_says_is_what_is_asked_for(template):
    asked = said(caption(SCENE, template))
    assert asked.items() <= words_of(SCENE).items()
    assert set(asked) == {name for name in FIELDS if f"{{{name}}}" in TEMPLATES[template]}


def test_a_shape_between_two_is_neither():
    assert [name_shape(fill) for fill in (0.5, 0.66, 0.785, 0.88, 1.0)] == [
        "triangle",
        UNCLEAR,
        "circle",
        UNCLEAR,
        "square",
    ]
