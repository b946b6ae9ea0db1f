"""The small H3 that comes with the program: moving shapes and a tone, as a caption says. README.md tells all of it."""

import hashlib
import shutil
from pathlib import Path

from h3.convert import Target, convert
from h3.errors import CheckpointError, ConfigError
from h3.model_folder import PARTITION, find_denoiser, require_new
from h3.precision import Precision

ROOT = Path(__file__).parent
CHECKSUMS = "SHA256SUMS"


def write_demo_model(root: Path, precision: Precision = Precision.BF16) -> None:
    """Write it below `root`, as `copy_model` does. Raises CheckpointError also if its own files are damaged."""
    check(ROOT)
    copy_model(ROOT, root, precision)


def copy_model(source: Path, root: Path, precision: Precision) -> None:
    """Copy a model in the official layout; for NVFP4 its denoiser becomes one comfy-nvfp4 file.

    Raises CheckpointError if there is a checkpoint already, ConfigError for another precision than these two.
    """
    if precision not in (Precision.BF16, Precision.NVFP4):
        raise ConfigError(f"the demo's model is there in {Precision.BF16} and {Precision.NVFP4}, not in {precision}")
    require_new(root)
    packs = precision is Precision.NVFP4
    left_out = shutil.ignore_patterns("transformer") if packs else None
    shutil.copytree(source / PARTITION, root / PARTITION, ignore=left_out, dirs_exist_ok=True)
    if packs:
        convert(find_denoiser(source), root / PARTITION / "transformer.safetensors", Target.COMFY_NVFP4)


def check(root: Path) -> None:
    """Raises CheckpointError naming a file that is missing or is not what was trained."""
    for line in (root / CHECKSUMS).read_text().splitlines():
        expected, name = line.split()
        path = root / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise CheckpointError(f"{path} is not the file of this version: install h3render again")
