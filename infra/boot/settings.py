"""What the environment says to a pod: what its order told it, and what its owner wants of it."""

import platform
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, Field, PositiveFloat, PositiveInt, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from infra.errors import GuardRefused
from infra.order import VOLUME_PATH, WORKSPACE

PREFIX = "H3_POD_"
LEAST_PATIENCE_S = 120.0


def default_models() -> Path:
    """On a network volume, which outlives the pod, if there is one where orders mount it."""
    return Path(VOLUME_PATH if Path(VOLUME_PATH).is_dir() else WORKSPACE) / "models"


class PodIdentity(BaseSettings):
    """Who this pod is, whom it serves and until when: what RunPod and the order tell it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    name: str = Field(default_factory=platform.node, validation_alias="H3_WORKER_NAME")
    fleet: str = Field("manual", validation_alias="FLEET_ID")
    lease_until: AwareDatetime | None = Field(None, validation_alias="LEASE_UNTIL")
    pod_id: str = Field("", validation_alias="RUNPOD_POD_ID")
    data_center: str = Field("", validation_alias="RUNPOD_DC_ID")
    redis_url: SecretStr | None = Field(None, validation_alias="REDIS_URL")


class BootSettings(PodIdentity):
    """And what its owner wants. Variables named in upper case with the prefix H3_POD_, unless an alias is given."""

    gpus: Annotated[int, Field(ge=0)] | None = None  # that must be there; else one at least. 0: a machine without
    models: Path = Field(default_factory=default_models)  # where checkpoints lie
    checkpoints: SecretStr | None = None  # a manifest, or the file of one; its URLs may be signed, so it is not shown
    model_path: Path | None = Field(None, validation_alias="H3_MODEL_PATH")  # that the worker serves; else all models
    fetches: PositiveInt = 8  # parts of checkpoints that are under way at a time
    part_bytes: PositiveInt = 32 << 20  # of a checkpoint, by one request
    idle_s: PositiveFloat = 1800.0  # without a job; then the pod leaves
    contact_s: PositiveFloat = 1800.0  # idle, and no reconciler has looked; likewise
    trial_s: PositiveFloat = 300.0  # for the GPUs' first exchange; one that hangs takes for ever
    end_grace_s: PositiveFloat = 300.0  # before an unfit pod ends itself, to read its log; and between later tries
    look_s: PositiveFloat = 15.0  # between two looks at the queue
    drain_s: PositiveFloat | None = Field(None, validation_alias="H3_DRAIN_S")  # that the worker was told to take
    worker_command: str | None = None  # else `h3render worker`
    trial_command: str | None = None  # else `h3render bench transport`; told where its report goes by --report
    end_command: str | None = None  # ends this pod; else runpodctl, where it is installed
    start_script: Path = Path("/start.sh")  # of RunPod's images: SSH
    health_file: Path = Path("/run/h3render/healthy")  # renewed at each look, and gone from a pod that is not well

    @property
    def patience_s(self) -> float:
        """From the worker's drain to its kill."""
        return max(LEAST_PATIENCE_S, (self.drain_s or 0) + LEAST_PATIENCE_S / 2)

    @property
    def worker_arguments(self) -> list[str]:
        if self.worker_command is not None:
            return shlex.split(self.worker_command)
        return [*_OURS, "worker", "--checkpoint", str(self.model_path or self.models)]

    @property
    def end_arguments(self) -> list[str]:
        """None at all if this pod cannot end itself."""
        if self.end_command is not None:
            return shlex.split(self.end_command)
        # With the key that RunPod gives a pod, its API v2 refuses this, and its older API, which the tool speaks, ends.
        tool = shutil.which("runpodctl")
        return [tool, "remove", "pod", self.pod_id] if tool and self.pod_id else []

    def trial_arguments(self, gpus: int) -> list[str]:
        if self.trial_command is not None:
            return shlex.split(self.trial_command)
        return [*_OURS, "bench", "transport", "--world-size", str(gpus), "--attention", "sdpa"]


_OURS = [sys.executable, "-m", "h3render"]


def read_boot_settings() -> tuple[BootSettings, str]:
    """The settings, and what is wrong with them: then all but who the pod is are the defaults.

    A pod that ended for a typo would be started again by RunPod for as long as somebody pays: so it stays, and says
    why. Raises GuardRefused if it cannot even be told who it is.
    """
    try:
        return BootSettings(), ""
    except ValidationError as exc:
        wrong = _say_problems(exc)
    try:
        identity = PodIdentity()
    except ValidationError as exc:
        raise GuardRefused(_say_problems(exc)) from None  # whose text may have the input
    return BootSettings.model_construct(**identity.model_dump()), wrong


def _say_problems(error: ValidationError) -> str:
    """Without values: one may be a URL that is a secret."""
    return "; ".join(f"{_say_variable(problem['loc'])}: {problem['msg'].lower()}" for problem in error.errors())


def _say_variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0])
    return name if name.isupper() else f"{PREFIX}{name.upper()}"
