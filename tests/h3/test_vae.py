"""Both autoencoders against the diffusers classes, and their files in either layout."""

import json
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest
import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition
from safetensors.torch import load_file, save_file

from h3.errors import CheckpointError
from h3.sequence import Geometry
from h3.vae import (
    cross_fade,
    load_audio_decoder,
    load_audio_vae,
    load_video_decoder,
    load_video_encoder,
    load_video_vae,
    to_pixels,
)
from h3.vae_config import AudioVaeConfig, OfficialSource, OfficialWrapper, VideoVaeConfig
from h3.vae_files import KEPT_IN_FP32, check_audio_vae, check_video_vae, read_audio_vae, video_vae_files
from h3.vae_shapes import audio_shapes, video_shapes
from h3.vae_tiles import decode_tiles

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DTYPES = [torch.bfloat16, torch.float32]
CLIPS = [
    (1, (64, 64, 22)),
    (2, (96, 64, 39)),
    (8, (64, 96, 141)),
    (2, (672, 64, 39)),  # four tiles, overlaps of unequal width
]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def load_in(tiny):
    """The whole class of video, and what decodes alone, in a dtype."""

    @cache
    def load(dtype):
        return load_video_vae(tiny.video_vae, CPU, dtype), load_video_decoder(tiny.video_vae, CPU, dtype)

    return load


@pytest.fixture(scope="module")
def vae(load_in):
    """The whole class, in the model's precision."""
    return load_in(torch.bfloat16)[0]


@pytest.fixture(scope="module")
def video(load_in):
    return load_in(torch.bfloat16)[1]


@pytest.fixture(scope="module")
def diffusers_vae(tiny, tmp_path_factory):
    """The tiny video autoencoder as diffusers itself writes it."""
    folder = tmp_path_factory.mktemp("diffusers")
    load_video_vae(tiny.video_vae, CPU, torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sound(tiny):
    """The audio class filled by torch: the official names are its own."""
    vae = AutoencoderKLMiniMaxH3Audio(**read_audio_vae(tiny.audio_vae).config.model_dump())
    vae.load_state_dict(load_file(tiny.audio_vae / "model.safetensors"))
    return vae.eval()


@pytest.fixture
def copied(tiny, tmp_path):
    """Both folders, to be damaged."""
    for part in ("video_vae", "audio_vae"):
        shutil.copytree(getattr(tiny, part), tmp_path / part)
    return tmp_path


def draw_latents(width, height, frames):
    geometry = Geometry(width, height, frames)
    shape = (24, geometry.latent_frames, geometry.latent_height, geometry.latent_width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(frames))


def decode_whole(vae, latents):
    """As the class does, without clips: [F, H, W, 3]."""
    mean, std = (
        torch.tensor(values, device=latents.device)[:, None, None, None]
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return vae.decode((latents * std + mean)[None]).sample[0].permute(1, 2, 3, 0)


def pytest_generate_tests(metafunc):
    if metafunc.function is test_clips_joined_equal_the_whole_decode:
        tiled = (480, 288, 22) if metafunc.config.getoption("full") else (288, 288, 22)  # 3 x 2 tiles, or 2 x 2
        metafunc.parametrize(("clips", "shape"), [*CLIPS, (1, tiled)], ids=str)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_clips_joined_equal_the_whole_decode(load_in, dtype, clips, shape):
    """Streaming is exact, also across spatial tiles: bit for bit in bf16, and in fp32 no rounding hides one."""
    whole_vae, video = load_in(dtype)
    latents = draw_latents(*shape)
    streamed = list(video.float_clips(latents))
    assert len(streamed) == clips
    assert [len(clip) for clip in streamed] == Geometry(*shape).clip_frames
    joined, whole = torch.cat(streamed), decode_whole(whole_vae, latents)
    assert joined.dtype == whole.dtype == dtype
    assert (joined - whole).abs().max() <= (1e-5 if dtype == torch.float32 else 0)
    assert torch.equal(next(video.clips(latents)), to_pixels(streamed[0]))


@torch.inference_mode()
def test_tiles_decoded_together_are_those_decoded_alone(load_in):
    vae = load_in(torch.float32)[1].module
    tiles = list(torch.randn(5, 1, 24, 7, 6, 4, generator=torch.Generator().manual_seed(0)))
    alone = [vae.decoder(vae.post_quant_conv(tile)) for tile in tiles]
    together = decode_tiles(vae, tiles, 2)
    assert len(together) == len(alone)
    for found, right in zip(together, alone, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("shape", [(864, 480, 22), (128, 96, 22)], ids=str)
@torch.inference_mode()
def test_a_gpu_decodes_tiles_together_as_the_class_does_them_alone(tiny, shape):
    stock = load_video_vae(tiny.video_vae, GPU)
    video = load_video_decoder(tiny.video_vae, GPU)
    latents = draw_latents(*shape).to(GPU)
    found, right = video.window(latents, 0).float(), decode_whole(stock, latents).float()
    assert (found - right).norm() < 1e-2 * right.norm()
    assert torch.equal(video.window(latents, 0).float(), found)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@torch.inference_mode()
def test_clips_from_a_later_one_on_are_the_same(video, first):
    latents = draw_latents(64, 64, 56)
    later = list(video.clips(latents, first))
    assert len(later) == 3 - first
    for clip, same in zip(later, list(video.clips(latents))[first:], strict=True):
        assert torch.equal(clip, same)


@torch.inference_mode()
def test_a_clip_comes_before_the_latents_of_later_clips_are_read(video):
    latents = torch.randn(24, 12, 4, 4)
    damaged = latents.clone()
    damaged[:, 7:] = float("nan")
    assert torch.equal(next(video.clips(damaged)), next(video.clips(latents)))


def test_a_cross_fade_begins_wholly_at_the_old_frames():
    faded = cross_fade(torch.zeros(5, 2, 2, 3), torch.ones(5, 2, 2, 3))
    assert faded[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])


@torch.inference_mode()
def test_a_picture_keeps_the_aspect_and_is_never_enlarged(video):
    latents = torch.randn(24, 7, 4, 8)
    assert video.picture(latents, 64).shape == (32, 64, 3)
    assert video.picture(latents, 1000).shape == (64, 128, 3)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (288, 320)])
@torch.inference_mode()
def test_a_picture_is_encoded_as_diffusers_does_bit_for_bit(vae, tiny, height, width):
    """Also across tiles: 288 and 320 pixels are two each."""
    picture = torch.randint(256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    latents = load_video_encoder(tiny.video_vae, CPU).encode(picture)
    assert latents.shape == (24, 1, height // 16, width // 16)
    assert latents.dtype == torch.float32
    assert torch.equal(latents[None], encode_vae_condition(vae, picture.permute(2, 0, 1)[None, :, None], *IMAGENET))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_layouts_load_as_diffusers_loads_its_own(tiny, diffusers_vae, dtype):
    """Bit for bit, and in the same dtypes: what the class pins to fp32 stays so."""
    expected = AutoencoderKLMiniMaxH3.from_pretrained(diffusers_vae, torch_dtype=dtype, local_files_only=True)
    for folder in (tiny.video_vae, diffusers_vae):
        loaded = load_video_vae(folder, CPU, dtype)
        assert list(loaded.config.latents_std) == list(expected.config.latents_std)
        assert torch.equal(loaded.decoder.rope.inv_freq, expected.decoder.rope.inv_freq)
        for name, values in expected.state_dict().items():
            assert loaded.state_dict()[name].dtype == values.dtype, name
            assert torch.equal(loaded.state_dict()[name], values), name


def test_official_names_and_row_orders_are_the_published_ones(tiny):
    """Written out by hand: loader and writer share their map, so that one alone could be wrong unseen."""
    stored = load_file(tiny.video_vae / "source" / "model.safetensors")
    loaded = load_video_vae(tiny.video_vae, CPU, torch.float32).state_dict()
    block = "decoder.transformer_blocks.1"
    for name, official in {
        "encoder.conv_in.bias": "encoder.conv_in.bias",
        "encoder.down_blocks.5.resnets.0.conv1.weight": "encoder.down.5.block.0.conv1.weight",
        "encoder.down_blocks.5.resnets.0.conv_shortcut.weight": "encoder.down.5.block.0.nin_shortcut.weight",
        "encoder.down_blocks.2.downsamplers.0.conv.weight": "encoder.down.2.downsample.conv.weight",
        "quant_conv.weight": "quant_conv.weight",
        "decoder.proj_in.weight": "decoder.x_embedder.weight",
        "decoder.register_tokens": "decoder.register_tokens",
        f"{block}.attn.to_out.0.weight": f"{block}.attn.to_out.weight",
        f"{block}.ff.net.2.bias": f"{block}.ff.w2.bias",
        f"{block}.scale1": f"{block}.scale1",
    }.items():
        assert torch.equal(loaded[name], stored[official]), name
    for kind in ("weight", "bias"):
        heads = stored[f"{block}.attn.to_qkv.{kind}"].split(64)  # q, k, v of head 0, q, k, v of head 1
        for index, projection in enumerate("qkv"):
            rows = torch.cat([heads[index], heads[3 + index]])
            assert torch.equal(loaded[f"{block}.attn.to_{projection}.{kind}"], rows)
        gate, up = stored[f"{block}.ff.w1.{kind}"].split(512)
        assert torch.equal(loaded[f"{block}.ff.net.0.proj.{kind}"], torch.cat([up, gate]))


def test_who_decodes_holds_no_encoder_and_the_other_way_round(tiny):
    decoder, encoder = load_video_decoder(tiny.video_vae, CPU), load_video_encoder(tiny.video_vae, CPU)
    assert {name for name, _ in decoder.module.named_children()} == {"post_quant_conv", "decoder"}
    assert {name for name, _ in encoder.module.named_children()} == {"encoder", "quant_conv"}
    audio = load_audio_decoder(tiny.audio_vae, CPU)
    assert {name for name, _ in audio.module.named_children()} == {"dec_in_proj", "decoder"}


def test_the_whole_audio_class_encodes_as_the_class_does(tiny, sound):
    wave = torch.randn(1, 1, 1600)
    encoded = load_audio_vae(tiny.audio_vae, CPU).encode(wave).latent_dist
    assert torch.equal(encoded.mean, sound.encode(wave).latent_dist.mean)


def test_shapes_are_those_of_the_classes_at_the_published_sizes():
    scale = {"latents_mean": (0.0,) * 24, "latents_std": (1.0,) * 24}
    paths = {"source_path": "source", "source_safetensors_path": "model.safetensors"}
    fixed = {"vae_clip_length": 17, "vae_token_drop": 3, "vae_tile_size": 256, "vae_tile_overlap_min": 64}
    wrapper = OfficialWrapper(**paths, **fixed, **scale)
    with init_empty_weights():
        video = AutoencoderKLMiniMaxH3()
        audio = AutoencoderKLMiniMaxH3Audio(latents_mean=(0.0,) * 32, latents_std=(1.0,) * 32)
    official = VideoVaeConfig.model_validate(OfficialSource().arguments(wrapper))
    assert official == VideoVaeConfig.model_validate(dict(video.config))
    assert video_shapes(official) == {name: tuple(t.shape) for name, t in video.state_dict().items()}
    sizes = AudioVaeConfig.model_validate(dict(audio.config))
    assert audio_shapes(sizes) == {name: tuple(t.shape) for name, t in audio.state_dict().items()}


def test_files_are_checked_without_diffusers(tiny):
    code = "import sys; from pathlib import Path; from h3.vae_files import check_audio_vae, check_video_vae; "
    code += (
        "check_video_vae(Path(sys.argv[1])); check_audio_vae(Path(sys.argv[2])); assert 'diffusers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tiny.video_vae, tiny.audio_vae], check=True, timeout=60)


def test_the_tensors_that_count_lie_where_the_layout_has_them(tiny, diffusers_vae):
    assert video_vae_files(tiny.video_vae) == tiny.video_vae / "source" / "model.safetensors"
    assert video_vae_files(diffusers_vae) == diffusers_vae


def test_the_source_may_have_any_name_below_the_folder(copied):
    folder = copied / "video_vae"
    (folder / "inner").mkdir()
    (folder / "source").rename(folder / "inner" / "weights")
    (folder / "inner" / "weights" / "model.safetensors").rename(folder / "inner" / "weights" / "vae.safetensors")
    rewrite(folder / "config.json", source_path="inner/weights", source_safetensors_path="vae.safetensors")
    check_video_vae(folder)
    assert video_vae_files(folder) == folder / "inner" / "weights" / "vae.safetensors"


@pytest.mark.parametrize("field", ["source_path", "source_safetensors_path"])
@pytest.mark.parametrize("path", ["/source", "../source", "source/../../source"])
def test_a_path_that_leaves_the_folder_is_refused(copied, field, path):
    rewrite(copied / "video_vae" / "config.json", **{field: path})
    with pytest.raises(
        CheckpointError, match=f"video_vae/config.json.*{field}: .*'{re.escape(path)}' leaves the folder"
    ):
        video_vae_files(copied / "video_vae")


def rewrite(path, **changes):
    """Set fields of a JSON file; None deletes one."""
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("video_vae/config.json", {"latents_mean": None}, "latents_mean: Field required"),
        ("video_vae/config.json", {"latents_std": [0.0] * 24}, "latents_std.0: "),
        ("video_vae/config.json", {"vae_tile_size": 512}, "vae_tile_size: Input should be 256"),
        ("video_vae/config.json", {"vae_clip_length": None}, "vae_clip_length: Field required"),
        ("video_vae/config.json", {"source_path": None}, "latent_channels: Field required"),
        ("video_vae/source/config.json", {"ch": "wide"}, "ch: "),
        ("video_vae/source/config.json", {"z_channels": 16}, "z_channels 16, but embed_dim 24"),
        ("video_vae/source/config.json", {"padding_mode": "zeros"}, "padding_mode: Input should be 'reflect'"),
        ("video_vae/source/config.json", {"vit_decoder_kwargs": {"heads": 0}}, "vit_decoder_kwargs.heads: "),
        ("audio_vae/config.json", {"latents_std": None}, "latents_std: Field required"),
        ("audio_vae/config.json", {"sample_rate": 44_100}, "sample_rate is 44100, but 32000 in metadata.json"),
        ("audio_vae/metadata.json", {"metadata": {}}, "no metadata.kwargs"),
        ("audio_vae/metadata.json", {"metadata": {"kwargs": {"attn_proj": False}}}, "attn_proj: Input should be True"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named_with_its_file(copied, file, changes, named):
    rewrite(copied / file, **changes)
    check = check_video_vae if file.startswith("video") else check_audio_vae
    with pytest.raises(CheckpointError, match=f"{re.escape(file)}.*{re.escape(named)}"):
        check(copied / file.split("/")[0])


def test_numbers_that_do_not_fit_together_are_named(copied):
    rewrite(copied / "video_vae" / "source" / "config.json", space_down=[2, 2, 2, 1, 1, 1])
    with pytest.raises(CheckpointError, match="a latent spans 8 pixels and 4 frames, expected 16 and 4"):
        check_video_vae(copied / "video_vae")
    rewrite(copied / "audio_vae" / "config.json", latents_mean=[0.0] * 31)
    with pytest.raises(CheckpointError, match="latents_mean has 31 values for 32 latent channels"):
        check_audio_vae(copied / "audio_vae")


@pytest.mark.parametrize("file", ["video_vae/config.json", "video_vae/source/config.json", "audio_vae/metadata.json"])
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_json_file_that_is_missing_or_no_object_is_named(copied, file, content):
    (copied / file).unlink() if content is None else (copied / file).write_text(content)
    check = check_video_vae if file.startswith("video") else check_audio_vae
    with pytest.raises(CheckpointError, match=file):
        check(copied / file.split("/")[0])


@pytest.mark.parametrize(
    ("file", "name", "changed", "message"),
    [
        ("video_vae/source", "encoder.conv_in.bias", None, "lacks tensor encoder.conv_in.bias"),
        ("video_vae/source", "decoder.new", torch.ones(1), "holds tensor decoder.new"),
        ("video_vae/source", "decoder.transformer_blocks.0.attn.to_qkv.bias", torch.ones(128), r"\[128\].*\[384\]"),
        ("video_vae/source", "post_quant_conv.bias", torch.ones(24).bfloat16(), "bfloat16, expected .* float32"),
        ("audio_vae", "decoder.activation_post.upsample.filter", None, "lacks tensor decoder.activation_post"),
        ("audio_vae", "decoder.conv_pre.bias", torch.ones(256).bfloat16(), "bfloat16, expected .* float32"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_form_is_named(copied, file, name, changed, message):
    path = copied / file / "model.safetensors"
    tensors = load_file(path) | {name: changed}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    load = load_video_decoder if file.startswith("video") else load_audio_decoder
    with pytest.raises(CheckpointError, match=message) as caught:
        load(copied / file.split("/")[0], CPU)
    assert file in str(caught.value)
    assert name in str(caught.value)


def test_what_is_kept_in_fp32_is_the_classs_own_list():
    assert set(AutoencoderKLMiniMaxH3._keep_in_fp32_modules) == KEPT_IN_FP32


@pytest.mark.parametrize(
    "name",
    [
        "encoder.conv_in.bias",
        "quant_conv.weight",
        "decoder.transformer_blocks.0.norm1.weight",
        "decoder.transformer_blocks.1.norm2.weight",
        "decoder.norm_out.bias",
        "decoder.transformer_blocks.0.scale1",
        "decoder.transformer_blocks.1.scale2",
    ],
)
def test_diffusers_files_may_be_bf16_but_for_what_stays_fp32(tmp_path, diffusers_vae, name):
    path = shutil.copytree(diffusers_vae, tmp_path / "vae") / "diffusion_pytorch_model.safetensors"
    bf16 = AutoencoderKLMiniMaxH3.from_pretrained(diffusers_vae, torch_dtype=torch.bfloat16, local_files_only=True)
    tensors = bf16.state_dict()
    assert {tensor.dtype for tensor in tensors.values()} == set(DTYPES)
    save_file(tensors, path)
    check_video_vae(path.parent)
    save_file(tensors | {name: tensors[name].bfloat16()}, path)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is \[.*\] bfloat16, expected \[.*\] float32"):
        check_video_vae(path.parent)


def test_the_tensor_that_only_training_needs_may_be_there(copied):
    path = copied / "video_vae" / "source" / "model.safetensors"
    save_file(load_file(path) | {"decoder.mask_token": torch.zeros(1, 1, 128)}, path)
    check_video_vae(copied / "video_vae")


@torch.inference_mode()
def test_sound_is_what_the_class_decodes_of_each_channel(tiny, sound, tmp_path):
    """In either layout, 800 samples a latent, rows of the left channel first."""
    rows = torch.randn(2 * 10, 32)
    mean, std = torch.tensor(sound.config.latents_mean), torch.tensor(sound.config.latents_std)
    left, right = ((half * std + mean).T for half in rows.split(10))
    expected = sound.decode(torch.stack([left, right])).sample[:, 0]
    assert expected.std() > 1e-3
    sound.save_pretrained(tmp_path)
    for folder in (tiny.audio_vae, tmp_path):
        audio = load_audio_decoder(folder, CPU)
        assert {values.dtype for values in audio.module.state_dict().values()} == {torch.float32}
        wave = audio.decode(rows)
        assert wave.shape == (2, 8000)
        assert (wave - expected).abs().max() <= 1e-6


@torch.inference_mode()
def test_channels_of_the_latents_are_channels_of_the_sound(tiny):
    audio = load_audio_decoder(tiny.audio_vae, CPU)
    rows = torch.randn(2 * 10, 32)
    wave = audio.decode(rows)
    assert not torch.equal(wave[0], wave[1])
    swapped = audio.decode(rows.unflatten(0, (2, 10)).flip(0).flatten(0, 1))
    assert torch.equal(swapped, wave.flip(0))


def difference(found, expected):
    """Relative L2."""
    return ((found.double().cpu() - expected.double()).norm() / expected.double().norm()).item()


@torch.inference_mode()
def test_convolutions_of_sound_and_picture_are_never_rounded_to_tf32(tiny):
    audio, encoder = load_audio_decoder(tiny.audio_vae, CPU), load_video_encoder(tiny.video_vae, CPU)
    allowed = []
    for module in (audio.module.decoder, encoder.module.encoder):
        module.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
    audio.decode(torch.randn(2 * 2, 32))
    encoder.encode(torch.zeros(32, 32, 3, dtype=torch.uint8))
    assert allowed == [False, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestOnCuda:
    """What TF32 costs, simulated on the CPU: 2.1e-3 of the sound, 1.8e-3 of the mean, 3e-4 of the rounded latents.

    fp32 against fp64 is 2e-7 and 1e-6.
    """

    @torch.inference_mode()
    def test_sound_is_that_of_the_cpu(self, tiny):
        rows = torch.randn(2 * 40, 32, generator=torch.Generator().manual_seed(0))
        expected, found = (load_audio_decoder(tiny.audio_vae, device).decode(rows) for device in (CPU, GPU))
        assert difference(found, expected) <= 1e-5

    @torch.inference_mode()
    def test_a_picture_is_encoded_as_on_the_cpu(self, tiny):
        picture = torch.randint(256, (128, 192, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
        cpu, gpu = (load_video_encoder(tiny.video_vae, device) for device in (CPU, GPU))
        assert difference(gpu.posterior(picture).mean, cpu.posterior(picture).mean) <= 1e-5
        # Latents are rounded to fp16, where a few values lie near the middle between two: one bit each.
        assert difference(gpu.encode(picture), cpu.encode(picture)) <= 1e-4
