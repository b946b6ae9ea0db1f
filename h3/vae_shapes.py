"""The shape of every tensor of both autoencoders, computed from their sizes, so that checking files builds no model.

Names and layers are those of the diffusers classes AutoencoderKLMiniMaxH3 and AutoencoderKLMiniMaxH3Audio.
"""

from itertools import pairwise

from h3.sequence import PIXELS_PER_LATENT
from h3.vae_config import FRAMES_PER_LATENT, AudioVaeConfig, VideoVaeConfig

Shapes = dict[str, tuple[int, ...]]


def video_shapes(config: VideoVaeConfig) -> Shapes:
    """Of each tensor of the class."""
    return _video_encoder_shapes(config) | _video_decoder_shapes(config)


def _video_encoder_shapes(config: VideoVaeConfig) -> Shapes:
    widths, moments = config.block_out_channels, 2 * config.latent_channels
    shapes = _layer("encoder.conv_in", widths[0], config.in_channels, 3, 3, 3)
    factors = zip(config.spatial_downsample_factors, config.temporal_downsample_factors, strict=True)
    for level, ((inner, outer), (space, time)) in enumerate(zip(pairwise((widths[0], *widths)), factors, strict=True)):
        block = f"encoder.down_blocks.{level}"
        for number in range(config.layers_per_block):
            shapes |= _resnet(f"{block}.resnets.{number}", outer if number else inner, outer)
        if space * time > 1:
            shapes |= _layer(f"{block}.downsamplers.0.conv", outer, outer, 3, 3, 3)
    shapes |= _layer("encoder.norm_out", widths[-1])
    shapes |= _layer("encoder.conv_out", moments, widths[-1], 3, 3, 3)
    return shapes | _layer("quant_conv", moments, moments, 1, 1, 1)


def _resnet(name: str, inner: int, outer: int) -> Shapes:
    shapes = _layer(f"{name}.norm1", inner) | _layer(f"{name}.conv1", outer, inner, 3, 3, 3)
    shapes |= _layer(f"{name}.norm2", outer) | _layer(f"{name}.conv2", outer, outer, 3, 3, 3)
    return shapes if inner == outer else shapes | _layer(f"{name}.conv_shortcut", outer, inner, 1, 1, 1)


def _video_decoder_shapes(config: VideoVaeConfig) -> Shapes:
    channels, width = config.latent_channels, config.decoder_num_attention_heads * config.decoder_attention_head_dim
    pixels = config.out_channels * FRAMES_PER_LATENT * PIXELS_PER_LATENT**2
    shapes = _layer("post_quant_conv", channels, channels, 1, 1, 1)
    shapes["decoder.register_tokens"] = (1, config.decoder_num_register_tokens, width)
    shapes |= _layer("decoder.proj_in", width, channels)
    for number in range(config.decoder_num_layers):
        shapes |= _transformer_block(f"decoder.transformer_blocks.{number}", width, width * config.decoder_ffn_mult)
    return shapes | _layer("decoder.norm_out", width) | _layer("decoder.proj_out", pixels, width)


def _transformer_block(name: str, width: int, inner: int) -> Shapes:
    vectors = ("norm1.weight", "norm2.weight", "scale1", "scale2")
    shapes: Shapes = {f"{name}.{vector}": (width,) for vector in vectors}
    for projection in ("to_q", "to_k", "to_v", "to_out.0"):
        shapes |= _layer(f"{name}.attn.{projection}", width, width)
    return shapes | _layer(f"{name}.ff.net.0.proj", 2 * inner, width) | _layer(f"{name}.ff.net.2", width, inner)


def audio_shapes(config: AudioVaeConfig) -> Shapes:
    """Of each tensor of the class."""
    channels, width = config.latent_channels, config.latent_dim
    shapes = _audio_encoder_shapes(config) | _attention_projection("pre_block", width, channels)
    for head in ("mean_proj", "logs_proj"):
        shapes |= _layer(head, channels, channels, 1)
    return shapes | _layer("dec_in_proj", width, channels, 1) | _audio_decoder_shapes(config)


def _audio_encoder_shapes(config: AudioVaeConfig) -> Shapes:
    width = config.encoder_dim
    shapes = _normed_conv("encoder.block.0", width, 1, 7)
    for level, rate in enumerate(config.encoder_rates, start=1):
        block = f"encoder.block.{level}.block"
        for unit in range(3):
            for place, kernel in ((0, 7), (2, 1)):
                shapes[f"{block}.{unit}.block.{place}.alpha"] = (1, width, 1)
                shapes |= _normed_conv(f"{block}.{unit}.block.{place + 1}", width, width, kernel)
        shapes[f"{block}.3.alpha"] = (1, width, 1)
        shapes |= _normed_conv(f"{block}.4", 2 * width, width, 2 * rate)
        width *= 2
    levels = len(config.encoder_rates)
    shapes[f"encoder.block.{levels + 1}.alpha"] = (1, width, 1)
    return shapes | _normed_conv(f"encoder.block.{levels + 2}", config.latent_dim, width, 3)


def _attention_projection(name: str, inner: int, outer: int) -> Shapes:
    shapes: Shapes = {f"{name}.attn.{bias}": (inner,) for bias in ("q_bias", "v_bias", "zero_k_bias")}
    shapes[f"{name}.attn.qkv.weight"] = (3 * inner, inner)
    shapes |= _layer(f"{name}.attn.proj", outer, outer) | _layer(f"{name}.proj", outer, inner)
    for norm, width in (("norm1", inner), ("norm3", inner), ("norm2", outer), ("mlp.norm", outer)):
        shapes |= _layer(f"{name}.{norm}", width)
    shapes |= _layer(f"{name}.mlp.w0", 2 * outer, outer) | _layer(f"{name}.mlp.w1", 2 * outer, outer)
    return shapes | _layer(f"{name}.mlp.w2", outer, 2 * outer)


def _audio_decoder_shapes(config: AudioVaeConfig) -> Shapes:
    width, kernels = config.decoder_dim, len(config.resblock_kernel_sizes)
    shapes = _normed_conv("decoder.conv_pre", width, config.latent_dim, 7)
    for level, kernel in enumerate(config.decoder_kernel_sizes):
        # A transposed convolution has its input channels first, and its norm with them.
        shapes |= _normed_conv(f"decoder.ups.{level}.0", width, width // 2, kernel)
        width //= 2
        shapes[f"decoder.ups.{level}.0.bias"] = (width,)
        blocks = zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        for number, (size, dilations) in enumerate(blocks):
            shapes |= _sound_block(f"decoder.resblocks.{level * kernels + number}", width, size, len(dilations))
    shapes |= _snake("decoder.activation_post", width) | _normed_conv("decoder.conv_post", 1, width, 7)
    del shapes["decoder.conv_post.bias"]
    return shapes


def _sound_block(name: str, width: int, kernel: int, dilations: int) -> Shapes:
    shapes: Shapes = {}
    for number in range(dilations):
        for stack in ("convs1", "convs2"):
            shapes |= _normed_conv(f"{name}.{stack}.{number}", width, width, kernel)
    for number in range(2 * dilations):
        shapes |= _snake(f"{name}.activations.{number}", width)
    return shapes


def _snake(name: str, width: int) -> Shapes:
    shapes: Shapes = {f"{name}.act.{exponent}": (width,) for exponent in ("alpha", "beta")}
    return shapes | {f"{name}.{filtered}.filter": (1, 1, 12) for filtered in ("upsample", "downsample.lowpass")}


def _layer(name: str, *shape: int) -> Shapes:
    """Weight and bias of a linear layer, a convolution or a norm; output channels first."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _normed_conv(name: str, *shape: int) -> Shapes:
    """A convolution under weight norm: direction, length for each first channel, bias."""
    return {f"{name}.weight_v": shape, f"{name}.weight_g": (shape[0], 1, 1), f"{name}.bias": shape[:1]}
