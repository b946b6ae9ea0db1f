"""Checkpoints with random weights for benches: the loaders take them, and what they compute stays finite."""

import shutil

import pytest
import torch

from h3.bench.untrained_model import (
    Sizes,
    choose_root,
    choose_stored,
    name_root,
    published_audio,
    published_video,
    write_model,
)
from h3.errors import ConfigError
from h3.model_folder import ModelFolder
from h3.precision import Precision
from h3.sequence import Geometry
from h3.text_files import LAYER_KEY
from h3.untrained import H3, TINY, with_curve
from h3.vae import load_audio_decoder, load_video_decoder, load_video_encoder

CPU = torch.device("cpu")
LATENTS = Geometry(96, 64, 39)


def small_sizes():
    """The same, on a diet."""
    sizes = Sizes()
    text, vision = dict(sizes.text["text_config"]), dict(sizes.text["vision_config"])
    text |= {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    vision |= {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    return Sizes(
        with_curve(TINY),
        sizes.text | {"text_config": text, "vision_config": vision},
        sizes.video.model_copy(
            update={
                "block_out_channels": (32,) * 6,
                "layers_per_block": 1,
                "decoder_num_layers": 36,  # deep as it is, and thin
                "decoder_num_attention_heads": 2,
            }
        ),
        sizes.audio.model_copy(update={"encoder_dim": 4, "latent_dim": 64, "decoder_dim": 256}),
    )


@pytest.fixture(scope="module")
def sizes():
    return small_sizes()


@pytest.fixture(scope="module")
def root(tmp_path_factory, sizes):
    root = tmp_path_factory.mktemp("untrained") / "model"
    told = []
    write_model(root, sizes, Precision.NVFP4, CPU, told.append)
    assert len(told) == 5
    return root


@pytest.fixture(scope="module")
def model(root):
    return ModelFolder.below(root)


def test_every_part_is_as_the_loaders_want_it(model, sizes):
    assert model.check() == sizes.denoiser
    assert len(model.digest()) == 64


def test_pictures_and_sound_of_random_latents_are_finite_and_not_flat(model):
    with torch.inference_mode():
        frames = load_video_decoder(model.video_vae, CPU).window(torch.randn(24, 7, 4, 6), 0)
        sound = load_audio_decoder(model.audio_vae, CPU).decode(torch.randn(2 * LATENTS.audio_latents, 32))
        keyframe = load_video_encoder(model.video_vae, CPU).encode(torch.zeros(64, 96, 3, dtype=torch.uint8))
    for values in (frames.float(), sound, keyframe):
        assert values.isfinite().all()
        assert 1e-3 < values.std() < 100


def test_the_text_encoder_is_shallow_and_gives_states_of_its_width(model):
    from h3.text import load_text_encoder

    encoder = load_text_encoder(model.text_encoder, model.tokenizer, CPU)
    with torch.inference_mode():
        states = encoder.encode(encoder.present("a red kite"))
    assert states.shape == (10, 64)
    assert states.isfinite().all()
    assert 0.1 < states.float().std() < 10


def test_what_is_written_is_kept_and_a_part_that_is_gone_is_written_again(model, root, sizes):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.safetensors")}
    shutil.rmtree(model.tokenizer)
    told = []
    write_model(root, sizes, Precision.NVFP4, CPU, told.append)
    assert told == [f"writing {model.tokenizer}, once"]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.safetensors")} == before
    model.check()


def test_by_default_all_sizes_are_the_published_ones_but_for_the_text_encoders_depth():
    sizes = Sizes()
    assert sizes.denoiser == with_curve(H3)
    assert sizes.text["text_config"]["hidden_size"] == H3.text_dim
    assert (sizes.text[LAYER_KEY], sizes.text["text_config"]["num_hidden_layers"]) == (2, 2)
    assert published_video().decoder_num_layers == 36
    assert published_audio().latent_dim == 2048


@pytest.mark.parametrize(("loaded", "stored"), [(None, "nvfp4"), ("nvfp4", "nvfp4"), ("bf16", "bf16"), ("fp8", "bf16")])
def test_random_weights_are_written_in_what_they_can_be_loaded_from(loaded, stored):
    assert choose_stored(loaded and Precision(loaded)) == stored


def test_a_toy_has_its_own_sizes(tmp_path):
    with pytest.raises(ConfigError, match="--tiny has its own sizes"):
        choose_root(None, tmp_path, CPU, print, tiny=True, layers=2, precision=None)


def test_other_sizes_lie_elsewhere(tmp_path):
    roots = {
        name_root(tmp_path, config, precision)
        for config in (H3, H3.model_copy(update={"num_layers": 2}), TINY)
        for precision in (Precision.BF16, Precision.NVFP4)
    }
    assert len(roots) == 6
