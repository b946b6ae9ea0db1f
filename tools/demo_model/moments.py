"""The encoder of the video autoencoder, set and not trained: it tells the moments of 16 x 16 pixels.

Its residual branches add nothing, so it is linear. Each of its four levels makes the moments of a block, in each
colour, out of those of its quarters; the last makes coefficients of polynomials of them. Of four frames it looks at
the last: what comes before the first frame is zeros, which a sum over time could not tell from black.

A linear map gets 31 dB of these frames out of that, a decoder that knows edges more. Encoder and decoder trained
together from nothing had agreed on each block's mean colour after three minutes of a GPU, 24 dB, and went no further.
"""

import math
from math import comb

import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor, nn

COLOURS = 3
MOMENTS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2))  # powers of x and y, both from -1 to 1 within a block
# Legendre polynomials in these moments, scaled so that each varies as much as the others in the clips.
POLYNOMIALS: tuple[dict[tuple[int, int], float], ...] = (
    {(0, 0): 0.7},
    {(1, 0): 9.0},
    {(0, 1): 9.0},
    {(1, 1): 30.0},
    {(2, 0): 30.0, (0, 0): -10.0},
    {(0, 2): 30.0, (0, 0): -10.0},
)
CHANNELS = COLOURS * len(POLYNOMIALS)
LOG_VARIANCE = -8.0  # of the posterior
LEVEL = 384.0  # of a channel beside which the others of its group hardly count: so a norm scales by a constant
LAST = 2  # of three frames that a kernel sees


@torch.no_grad()
def set_encoder(vae: AutoencoderKLMiniMaxH3) -> None:
    """Of an autoencoder with CHANNELS latent channels, and as many groups of three channels before its last norm."""
    encoder = vae.encoder
    _clear(encoder.conv_in, encoder.conv_out, vae.quant_conv)
    for colour in range(COLOURS):
        encoder.conv_in.weight[colour, colour, LAST, 1, 1] = 1
    for block in encoder.down_blocks:
        for resnet in block.resnets:
            _clear(resnet.conv1, resnet.conv2)
        for downsampler in block.downsamplers or ():
            _clear(downsampler.conv)
            _join_quarters(downsampler.conv.weight)
    _tell_polynomials(encoder)
    for channel in range(CHANNELS):
        vae.quant_conv.weight[channel, channel] = 1
    vae.quant_conv.bias[CHANNELS:] = LOG_VARIANCE


def _join_quarters(weight: Tensor) -> None:
    """Of a strided convolution, [C, C, 3, 3, 3]: what lies below and to the right of a block is left out."""
    for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for whole in MOMENTS:
            for quarter in MOMENTS:
                share = _share(whole[0], quarter[0], 2 * x - 1) * _share(whole[1], quarter[1], 2 * y - 1) / 4
                for colour in range(COLOURS):
                    weight[_place(whole, colour), _place(quarter, colour), LAST, y, x] = share


def _share(power: int, part: int, side: int) -> float:
    """Of u**part in ((side + u) / 2)**power: where a place u of the half at `side`, -1 or 1, lies in the whole."""
    return comb(power, part) * side ** (power - part) / 2**power if part <= power else 0.0


def _tell_polynomials(encoder: nn.Module) -> None:
    """Past the last norm: each p is in a group of its own with -p and LEVEL, and silu(p) - silu(-p) is p."""
    shortcut, norm = encoder.down_blocks[-1].resnets[0].conv_shortcut, encoder.norm_out
    _clear(shortcut)
    for number, polynomial in enumerate(POLYNOMIALS):
        for colour in range(COLOURS):
            channel = COLOURS * number + colour
            for sign, member in ((1, 3 * channel), (-1, 3 * channel + 1)):
                for moment, factor in polynomial.items():
                    shortcut.weight[member, _place(moment, colour)] = sign * factor
                encoder.conv_out.weight[channel, member, LAST, 1, 1] = sign
    shortcut.bias[2::3] = LEVEL
    norm.weight.fill_(LEVEL * math.sqrt(2) / 3)  # the group's deviation
    norm.bias.fill_(LEVEL / 3)  # and its mean


def _place(moment: tuple[int, int], colour: int) -> int:
    return COLOURS * MOMENTS.index(moment) + colour


def _clear(*layers: nn.Module) -> None:
    for layer in layers:
        for parameter in layer.parameters():
            parameter.zero_()
