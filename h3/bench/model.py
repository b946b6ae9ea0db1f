"""What a bench measures: a checkpoint's denoiser, or random weights."""

from pathlib import Path

from h3.config import DenoiserConfig
from h3.denoise_fleet import open_source
from h3.errors import ConfigError
from h3.untrained import H3, TINY, Untrained, with_curve


def choose_model(path: Path | None, *, tiny: bool, layers: int | None) -> tuple[Path | Untrained, DenoiserConfig]:
    """The files' weights where files are named, else random ones, pruned like the smaller files. Raises ConfigError."""
    if path is not None:
        if tiny or layers:
            raise ConfigError("--model has its own sizes: leave --tiny and --layers out")
        return path, open_source(path)[0].config
    config = with_curve(TINY if tiny else H3)
    config = config.model_copy(update={"num_layers": layers}) if layers else config
    return Untrained(config), config
