"""How much memory each part of a model takes once it is loaded, told from the files' headers."""

from h3.checkpoint import DenoiserFiles
from h3.fp8 import FP8Linear, use_fp8
from h3.model import Denoiser
from h3.model_folder import ModelFolder
from h3.nvfp4 import NVFP4Linear
from h3.parallel.mode import Mode, trim_for
from h3.placement import (
    LARGEST_TOKENS,
    Machine,
    Needs,
    Part,
    Placement,
    find_gpu_bytes,
    find_host_bytes,
    plan,
    predict_modulation_bytes,
    predict_token_bytes,
)
from h3.precision import Precision
from h3.tensor_file import StoredTensor, find_tensors
from h3.text_files import open_whole
from h3.vae_files import video_vae_files

REFINER = ("token_refiner.", "condition_proj.")
PREPARATION = (*REFINER, "time_embedder.", "adaln_t_table", "rope.")
_ENCODER = ("encoder.", "quant_conv.")


def is_preparation(name: str) -> bool:
    """Whether a tensor of the denoiser is needed once a request, and not in its steps."""
    return name.startswith(PREPARATION) or ".adaln_proj." in name


def place(
    folder: ModelFolder, mode: Mode, world_size: int, precision: Precision | None = None, *, on_gpus: bool = True
) -> Placement:
    """What this machine does with the model: on its GPUs, or on the CPU if it has none or is not to use them.

    precision  of the denoiser's weights; None: as they are stored

    Raises CheckpointError, PartitionError, PlacementError.
    """
    machine = Machine(find_gpu_bytes() if on_gpus else None, find_host_bytes(), world_size)
    return plan(measure_needs(folder, mode, world_size, precision), machine, LARGEST_TOKENS)


def measure_needs(folder: ModelFolder, mode: Mode, world_size: int, precision: Precision | None = None) -> Needs:
    """Of rank 0, which has no smaller share than others. From headers only.

    Raises CheckpointError, ConfigError, PartitionError.
    """
    files = DenoiserFiles.open(folder.transformer)
    precision = precision or files.precision
    model, recipes = files.plan(precision)
    trim_for(mode, files.config, precision, 0, world_size)(model, recipes)
    if precision is Precision.FP8:
        use_fp8(model.blocks)
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in model.state_dict().items()}
    preparation = sum(size for name, size in sizes.items() if is_preparation(name))
    video = find_tensors(video_vae_files(folder.video_vae))
    encoder, decoder = _elements(video, encodes=True), _elements(video, encodes=False)
    return Needs(
        part_bytes={
            Part.TEXT_ENCODER: open_whole(folder.text_encoder).size_bytes(),
            Part.VIDEO_ENCODER: 4 * encoder,  # fp32
            Part.PREPARATION: preparation,
            Part.BLOCKS: sum(sizes.values()) - preparation,
            Part.VIDEO_DECODER: 2 * decoder,
            Part.AUDIO_DECODER: sum(stored.form.size_bytes for stored in find_tensors(folder.audio_vae).values()),
        },
        token_bytes=predict_token_bytes(files.config, world_size, keeps_rows=mode.keeps_rows),
        modulation_bytes=predict_modulation_bytes(files.config),
        scratch_bytes=_scratch_bytes(model),
    )


def _elements(tensors: dict[str, StoredTensor], *, encodes: bool) -> int:
    chosen = [stored for name, stored in tensors.items() if name.startswith(_ENCODER) is encodes]
    return sum(stored.form.size_bytes // stored.form.dtype.itemsize for stored in chosen)


def _scratch_bytes(model: Denoiser) -> int:
    """Of the largest weight that is widened to 16 bits before its product, as most GPUs need it."""
    packed = [layer.in_features * layer.out_features for layer in model.modules() if isinstance(layer, NVFP4Linear)]
    rounded = [layer.weight.numel() for layer in model.modules() if isinstance(layer, FP8Linear)]
    return 2 * max((*packed, *rounded), default=0)
