"""The exact model at its true size on one GPU, with random weights: files, memory, and agreement with diffusers.

    python tools/model_gates.py [REPORT.json] [--folder DIR] [--layers N]

Writes the pruned bf16 file (40 GB) and the NVFP4 file (12.5 GB) below DIR, one after the other, and reads each back.
Gates are printed and kept with their limits; the exit code is 1 if one is missed. `--layers` makes a quick run.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.multiprocessing as mp
import typer
from diffusers import MiniMaxH3Transformer3DModel

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from h3.checkpoint import DenoiserFiles, load_denoiser  # noqa: E402
from h3.config import DenoiserConfig  # noqa: E402
from h3.convert import Target, save_denoiser  # noqa: E402
from h3.denoise import Denoising  # noqa: E402
from h3.machine import describe_machine  # noqa: E402
from h3.model import Denoiser, Velocity  # noqa: E402
from h3.nvfp4 import NVFP4Linear, PackedWeight, dequantise, dequantise_eagerly, quantise  # noqa: E402
from h3.part_sizes import is_preparation  # noqa: E402
from h3.placement import DECODE_BYTES, ENCODE_BYTES, predict_modulation_bytes, predict_token_bytes  # noqa: E402
from h3.precision import Precision  # noqa: E402
from h3.sampler import Latents, draw_noise, make_schedule  # noqa: E402
from h3.sequence import Geometry, Layout  # noqa: E402
from h3.tensor_file import TensorForm, TensorWriter  # noqa: E402
from h3.untrained import H3, with_curve  # noqa: E402
from tests.h3.oracle import diffusers_model, diffusers_velocity  # noqa: E402
from tests.h3.random_models import MEDIUM_PRUNED, random_denoiser  # noqa: E402
from tests.h3.text_files import published_inventory, published_markers  # noqa: E402
from tools.gates import Gates, judge, relative  # noqa: E402
from tools.launch.arguments import SEED, SHAPE, STEPS, TEXT_TOKENS  # noqa: E402

H3_PRUNED = with_curve(H3)
SMALL = Geometry(256, 160, 39)
DEVICE = torch.device("cuda", 0)
NVFP4_TENSORS, NVFP4_FILE_BYTES = 1132, 12_528_636_800  # as published
FORWARD, FORWARD_FP32, LINEAR = 1e-2, 1e-5, 4e-3


@contextmanager
def timing(gates: Gates, name: str) -> Iterator[None]:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    yield
    torch.cuda.synchronize()
    gates.tell(name, round(time.perf_counter() - begun, 3))


@dataclass(frozen=True)
class Request:
    """A render of random states, ready to step."""

    layout: Layout
    states: torch.Tensor
    noise: Latents

    @classmethod
    def of(cls, config: DenoiserConfig, geometry: Geometry) -> "Request":
        generator = torch.Generator().manual_seed(1)
        states = torch.randn(TEXT_TOKENS, config.text_dim, generator=generator).bfloat16().to(DEVICE)
        noise = draw_noise(geometry, config.in_channels, config.audio_in_channels, seed=SEED)
        return cls(Layout(geometry, TEXT_TOKENS), states, noise.latents.to(DEVICE))

    def begin(self, denoiser: Denoiser, steps: int = STEPS) -> Denoising:
        return Denoising.begin(denoiser, self.states, self.layout, make_schedule(steps))

    def velocity(self, denoiser: Denoiser, step: int = 3) -> Velocity:
        denoising = self.begin(denoiser)
        packed = denoiser.embed(denoising.text, denoising.keyframes, self.noise.audio, self.noise.video)
        return denoiser.velocity(packed, denoising.rope, self.layout.spans, denoising.modulation.at(step))


def worst(found: Velocity, expected: Velocity) -> float:
    return max(relative(found.video, expected.video), relative(found.audio, expected.audio))


def checksum(model: Denoiser) -> dict[str, int]:
    """Of each tensor's bits and their places: rows in another order have another one."""
    return {name: weigh(tensor) for name, tensor in model.state_dict().items()}


def weigh(tensor: torch.Tensor) -> int:
    total = 0
    for number, part in enumerate(tensor.contiguous().view(-1).view(torch.uint8).split(1 << 28)):
        places = torch.arange(1, 2 * len(part), 2, device=part.device)
        total += int((part.long() * places).sum()) * (2 * number + 1)
    return total


def compare_with_diffusers(gates: Gates, name: str, model: Denoiser) -> None:
    """One forward of the true width, on the same weights."""
    twin = diffusers_model(model)
    for shape, geometry in (("small", SMALL), ("480p141", SHAPE)):
        request = Request.of(model.config, geometry)
        ours, theirs = request.velocity(model), theirs_of(twin, request)
        for part in ("video", "audio"):
            error = relative(getattr(ours, part), getattr(theirs, part))
            gates.at_most(f"{name}_forward_against_diffusers_{shape}_{part}", error, FORWARD)
            gates.tell(
                f"{name}_velocity_rms_{shape}_{part}", round(getattr(ours, part).square().mean().sqrt().item(), 3)
            )
    gates.tell(f"{name}_attended_share", attended_shares(model))


def theirs_of(twin: MiniMaxH3Transformer3DModel, request: Request) -> Velocity:
    timesteps = make_schedule(STEPS).timesteps()[3].to(DEVICE)
    keyframes = torch.empty(0, request.noise.video.shape[1], device=DEVICE)
    return diffusers_velocity(twin, request.layout, request.states, keyframes, request.noise, timesteps)


def attended_shares(model: Denoiser) -> list[float]:
    """In some blocks, of how many rows a row's attention is made: 1 would be uniform."""
    request, shares = Request.of(model.config, SMALL), []

    def attend(qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(0, 1).float() for part in qkv.unbind(1))
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        shares.append(round((entropy.exp() / weights.shape[-1]).mean().item(), 3))
        return (weights @ v).transpose(0, 1).to(qkv.dtype)

    chosen = [model.blocks[i].attn for i in {0, len(model.blocks) // 2, len(model.blocks) - 1}]
    before = [attention.attend for attention in chosen]
    for attention in chosen:
        attention.attend = attend
    request.velocity(model)
    for attention, old in zip(chosen, before, strict=True):
        attention.attend = old
    return shares


def resident(name: str) -> int:
    """Bytes of this process in host memory, now or at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def _load_apart(path: Path, found: "mp.Queue[dict[str, float]]") -> None:
    """In a process of its own: what loading takes of host memory is seen nowhere else."""
    torch.zeros(1, device=DEVICE).add_(1)
    torch.empty(1, pin_memory=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    begun = time.perf_counter()
    model = load_denoiser(path, DEVICE)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    found.put({"load_s": seconds, "host_bytes": resident("VmHWM") - before, "gpu_bytes": torch.cuda.memory_allocated()})
    del model


def load_apart(gates: Gates, name: str, path: Path) -> None:
    context = mp.get_context("spawn")
    queue: mp.Queue[dict[str, float]] = context.Queue()
    process = context.Process(target=_load_apart, args=(path, queue))
    process.start()
    found = queue.get(timeout=500)
    process.join()
    largest = max(stored.form.size_bytes for stored in DenoiserFiles.open(path).stored.values())
    gates.at_most(f"{name}_load_host_bytes", found.pop("host_bytes"), largest + (1 << 30))
    gates.tell(f"{name}_load", {key: round(value, 2) for key, value in found.items()})


def file_figures(gates: Gates, name: str, path: Path) -> None:
    files = DenoiserFiles.open(path)
    gates.tell(f"{name}_file", {"tensors": len(files.stored), "bytes": path.stat().st_size})


def sample(gates: Gates, name: str, model: Denoiser) -> None:
    """A few steps of the seed's shape: time, and memory against what the placement predicts."""
    request = Request.of(model.config, SHAPE)
    denoising, latents = request.begin(model), request.noise
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    resting = torch.cuda.memory_allocated()
    seconds = []
    for step in range(5):
        begun = time.perf_counter()
        _, latents = denoising.step(step, latents)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated()
    predicted = predict_token_bytes(model.config, world_size=1, keeps_rows=True) * request.layout.tokens
    gates.tell(f"{name}_step_s", round(min(seconds), 4))
    gates.tell(f"{name}_peak_bytes", peak)
    # A prediction that is too small runs out of memory; one that is far too large turns renders away.
    gates.tell(f"{name}_activation_bytes", {"measured": peak - resting, "predicted": predicted})
    gates.at_most(f"{name}_activation_over_prediction", (peak - resting) / predicted, 1.0)
    gates.at_most(f"{name}_prediction_over_activation", predicted / (peak - resting), 1.35)
    preparation = sum(t.numel() * t.element_size() for n, t in model.state_dict().items() if is_preparation(n))
    gates.tell(f"{name}_peak_bytes_without_preparation", peak - preparation)
    gates.tell("modulation_bytes_predicted_at_most", predict_modulation_bytes(model.config))


def check_linears(gates: Gates, model: Denoiser) -> None:
    """Each kind of layer against fp64, and the kernel against its eager twin."""
    for kind in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"):
        layer = model.blocks[0].get_submodule(kind)
        assert isinstance(layer, NVFP4Linear)
        x = torch.randn(2048, layer.in_features, device=DEVICE).bfloat16()
        exact = dequantise(layer.packed, torch.float32).double()
        gates.at_most(f"linear_{kind}", relative(layer(x), x.double() @ exact.T), LINEAR)
    unequal = 0
    for layer in model.modules():
        if isinstance(layer, NVFP4Linear):
            fast = dequantise(layer.packed, torch.bfloat16)
            unequal += not torch.equal(fast, dequantise_eagerly(layer.packed, torch.empty_like(fast)))
    gates.at_most("layers_whose_kernel_differs_from_its_eager_twin", unequal, 0)


def time_kernel(gates: Gates, model: Denoiser) -> None:
    """The largest layer's dequantisation, beside a copy that moves as many bytes."""
    packed = model.blocks[0].mlp.fc1.packed
    out = torch.empty(packed.rows, packed.columns, dtype=torch.bfloat16, device=DEVICE)
    source, target = torch.empty(
        2, (packed.codes.nbytes + packed.scales.nbytes + out.nbytes) // 2, dtype=torch.uint8, device=DEVICE
    )
    for name, run in (
        ("dequantise_fc1_ms", lambda: dequantise(packed, torch.bfloat16, out)),
        ("copy_as_many_bytes_ms", lambda: target.copy_(source)),
    ):
        gates.tell(name, round(fastest_ms(run), 4))


def fastest_ms(run: Callable[[], object], rounds: int = 20) -> float:
    times = []
    for _ in range(rounds):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    return min(times)


def check_medium_fp32(gates: Gates) -> None:
    model, dense = (random_denoiser(MEDIUM_PRUNED, dtype=torch.float32).to(DEVICE) for _ in range(2))
    for packed_block, dense_block in zip(model.blocks, dense.blocks, strict=True):
        for kind in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"):
            owner, leaf = kind.split(".")
            linear = dense_block.get_submodule(kind)
            packed = quantise(linear.weight)
            linear.weight.data = dequantise(packed, torch.float32)
            setattr(packed_block.get_submodule(owner), leaf, packed_linear(packed))
    request = Request.of(MEDIUM_PRUNED, SMALL)
    gates.at_most(
        "medium_fp32_nvfp4_against_dequantised", worst(request.velocity(model), request.velocity(dense)), FORWARD_FP32
    )


def packed_linear(packed: PackedWeight) -> NVFP4Linear:
    layer = NVFP4Linear(packed.columns, packed.rows)
    layer.weight, layer.weight_scale, layer.weight_scale_2 = packed.codes, packed.scales, packed.scale
    return layer


def check_text_encoder(gates: Gates, folder: Path) -> None:
    """The published file's inventory with random values: how it loads, and what encoding takes."""
    from h3.text_weights import load_model, read_config

    path = folder / "text-encoder.safetensors"
    forms = published_inventory()
    with timing(gates, "text_encoder_write_s"):
        write_random(path, forms, {"_quantization_metadata": published_markers()})
    gates.tell("text_encoder_file", {"tensors": len(forms), "bytes": path.stat().st_size})
    torch.cuda.reset_peak_memory_stats()
    with timing(gates, "text_encoder_load_s"):
        model = load_model(path, read_config(path), DEVICE, torch.bfloat16)
    resting = torch.cuda.memory_allocated()
    gates.tell("text_encoder_gpu_bytes", resting)
    ids = torch.randint(0, 150_000, (1, 4_000), device=DEVICE)
    for length in (TEXT_TOKENS, 4_000):
        model(input_ids=ids[:, :length], use_cache=False)
        torch.cuda.reset_peak_memory_stats()
        with timing(gates, f"text_encoder_{length}_tokens_s"):
            states = model(input_ids=ids[:, :length], use_cache=False).last_hidden_state
        assert states.shape == (1, length, 5120)
    gates.at_most("text_encoder_working_bytes", torch.cuda.max_memory_allocated() - resting, ENCODE_BYTES)


def write_random(path: Path, forms: dict[str, TensorForm], metadata: dict[str, str]) -> None:
    with TensorWriter(path, forms, metadata, resume=False) as writer:
        for name in writer.remaining:
            form = forms[name]
            if form.dtype in (torch.uint8, torch.int8):
                low = 0 if form.dtype == torch.uint8 else -127
                values = torch.randint(low, low + 255, form.shape, device=DEVICE, dtype=form.dtype)
            elif "norm" in name:
                values = torch.ones(form.shape, device=DEVICE, dtype=form.dtype)
            elif name.endswith("weight_scale_2"):
                values = torch.tensor(2e-5)
            else:
                values = (torch.rand(form.shape, device=DEVICE) * 0.02).to(form.dtype)
                if form.dtype == torch.float8_e4m3fn:
                    values = (torch.rand(form.shape, device=DEVICE) * 300 + 30).to(form.dtype)
            writer.write(values)
        writer.finish()


def check_autoencoders(gates: Gates) -> None:
    """The published sizes with random values: what one clip takes."""
    from diffusers import AutoencoderKLMiniMaxH3

    from h3.vae import VideoDecoder, VideoEncoder

    with torch.device(DEVICE):
        vae = AutoencoderKLMiniMaxH3(latents_mean=[0.0] * 24, latents_std=[1.0] * 24).eval()
    pinned = set(vae._keep_in_fp32_modules)
    for name, parameter in vae.named_parameters():
        if pinned.isdisjoint(name.split(".")):
            parameter.data = parameter.data.bfloat16()
    decoder, encoder = VideoDecoder(vae), VideoEncoder(vae)
    gates.tell("video_autoencoder_bytes", sum(p.numel() * p.element_size() for p in vae.parameters()))
    for geometry in (SHAPE, Geometry(1344, 768, 124)):
        latents = torch.randn(24, 7, geometry.latent_height, geometry.latent_width, device=DEVICE)
        picture = torch.zeros(geometry.height, geometry.width, 3, dtype=torch.uint8)
        decoder.window(latents, 0)
        resting = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with timing(gates, f"decode_one_clip_{geometry.width}x{geometry.height}_s"):
            decoder.window(latents, 0)
        decoding = torch.cuda.max_memory_allocated() - resting
        gates.at_most(f"decode_{geometry.width}x{geometry.height}_working_bytes", decoding, DECODE_BYTES)
        torch.cuda.reset_peak_memory_stats()
        with timing(gates, f"encode_one_picture_{geometry.width}x{geometry.height}_s"):
            encoder.encode(picture)
        encoding = torch.cuda.max_memory_allocated() - resting
        gates.at_most(f"encode_{geometry.width}x{geometry.height}_working_bytes", encoding, ENCODE_BYTES)


@torch.inference_mode()
def measure(gates: Gates, folder: Path, layers: int, *, with_files: bool) -> None:
    config = H3_PRUNED.model_copy(update={"num_layers": layers})
    unpruned = random_denoiser(H3.model_copy(update={"num_layers": min(layers, 8)}), device=str(DEVICE))
    compare_with_diffusers(gates, f"unpruned_{unpruned.config.num_layers}_blocks", unpruned)
    del unpruned
    torch.cuda.empty_cache()
    with timing(gates, "build_s"):
        model = random_denoiser(config, device=str(DEVICE))
    compare_with_diffusers(gates, "pruned", model)
    torch.cuda.empty_cache()
    sample(gates, "bf16", model)
    if not with_files:
        return
    before, request = checksum(model), Request.of(config, SMALL)
    expected, original = request.velocity(model), quantise(model.blocks[0].mlp.fc1.weight)
    bf16, nvfp4 = folder / "pruned-bf16.safetensors", folder / "pruned-nvfp4.safetensors"
    with timing(gates, "nvfp4_write_s"):
        save_denoiser(model, nvfp4, Target.COMFY_NVFP4)
    with timing(gates, "bf16_write_s"):
        save_denoiser(model, bf16, Target.COMFY_PRUNED)
    del model
    torch.cuda.empty_cache()
    file_figures(gates, "bf16", bf16)
    load_apart(gates, "bf16", bf16)
    model = load_denoiser(bf16, DEVICE)
    gates.at_most("bf16_tensors_that_changed_on_the_way", sum(before[n] != v for n, v in checksum(model).items()), 0)
    gates.at_most("bf16_forward_after_reading_against_before", worst(request.velocity(model), expected), 0)
    del model
    torch.cuda.empty_cache()
    bf16.unlink()
    file_figures(gates, "nvfp4", nvfp4)
    if layers == H3_PRUNED.num_layers:
        missing = NVFP4_FILE_BYTES - nvfp4.stat().st_size  # of a header that publishers write otherwise
        gates.at_most("nvfp4_tensors_more_or_less", abs(len(DenoiserFiles.open(nvfp4).stored) - NVFP4_TENSORS), 0)
        gates.at_most("nvfp4_bytes_more_or_less", abs(missing), 200_000)
    load_apart(gates, "nvfp4", nvfp4)
    packed, dense = load_denoiser(nvfp4, DEVICE), load_denoiser(nvfp4, DEVICE, Precision.BF16)
    read = packed.blocks[0].mlp.fc1.packed
    changed = [
        not torch.equal(getattr(read, n).view(torch.uint8), getattr(original, n).view(torch.uint8))
        for n in ("codes", "scales")
    ]
    gates.at_most("nvfp4_parts_that_changed_on_the_way", sum(changed), 0)
    check_linears(gates, packed)
    time_kernel(gates, packed)
    for name, geometry in (("small", SMALL), ("480p141", SHAPE)):
        request = Request.of(config, geometry)
        error = worst(request.velocity(packed), request.velocity(dense))
        gates.at_most(f"forward_nvfp4_against_dequantised_{name}", error, FORWARD)
    sample(gates, "dequantised", dense)
    del dense
    torch.cuda.empty_cache()
    sample(gates, "nvfp4", packed)
    check_medium_fp32(gates)
    del packed
    nvfp4.unlink()
    torch.cuda.empty_cache()
    check_autoencoders(gates)
    torch.cuda.empty_cache()
    check_text_encoder(gates, folder)


def main(
    target: Annotated[Path | None, typer.Argument(help="Where the JSON goes; else it is printed.")] = None,
    folder: Annotated[Path | None, typer.Option(help="For 53 GB of files.")] = None,
    layers: Annotated[int, typer.Option(help="Blocks; fewer for a quick run.")] = H3_PRUNED.num_layers,
    files: Annotated[bool, typer.Option(help="Write and read the files too.")] = True,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        about = {**describe_machine(), "layers": layers}
        judge(lambda gates: measure(gates, Path(work), layers, with_files=files), about, target)


if __name__ == "__main__":
    typer.run(main)
