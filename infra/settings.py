"""What the environment says to the commands for pods. Read once, by the command line.

The key is no setting like others: neither it nor RUNPOD_API_URL, which may hold one by mistake, is shown in an error.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from infra.errors import GuardRefused, KeyUnusable
from infra.pod_names import FLEET
from infra.reconciler.limits import BOOT_S, IDLE_S, RAISE_EVERY_S, SURPLUS_S
from jobs.folders import user_folder

API_HOST = "api.runpod.io"
SERVER_EDITION = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
IMAGE = "runpod/pytorch:1.1.0-cu1300-torch291-ubuntu2404"  # x86_64, CUDA 13.0, Torch 2.9.1


def default_ledger() -> Path:
    return user_folder("XDG_STATE_HOME", ".local/state") / "h3render" / "pods.jsonl"


def _check_api_url(text: str) -> str:
    """The origin alone. Nothing but RunPod's host, or this machine, is ever sent the key."""
    parts = _split(text)
    is_theirs = parts.scheme == "https" and parts.hostname == API_HOST and parts.port in (None, 443)
    is_here = parts.scheme in ("http", "https") and _is_loopback(parts.hostname or "")
    if not (is_theirs or is_here):
        raise ValueError(f"the key goes to https://{API_HOST} or to a loopback address alone: unset it")
    if parts.username is not None or parts.query or parts.fragment or parts.path.rstrip("/") not in ("", "/v2"):
        raise ValueError(f"write the origin alone, https://{API_HOST}")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port is not None else "")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as exc:
        raise ValueError("this is no URL") from exc
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


NamePart = Annotated[str, Field(pattern=f"^{FLEET.pattern}$")]
Usd = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PodSettings(BaseSettings):
    """Variables named in upper case with the prefix H3_PODS_, unless an alias is given."""

    model_config = SettingsConfigDict(
        env_prefix="H3_PODS_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    runpod_api_key: SecretStr | None = Field(None, validation_alias="RUNPOD_API_KEY")
    runpod_api_url: Annotated[str, AfterValidator(_check_api_url)] = Field(
        f"https://{API_HOST}", validation_alias="RUNPOD_API_URL"
    )
    redis_url: SecretStr | None = Field(None, validation_alias="REDIS_URL")  # of the queue that tells who is busy
    max_usd_per_hour: Usd = 40.0  # of all our pods together, when one more is created
    max_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 6.0  # of one pod, told to it as LEASE_UNTIL
    prefix: NamePart = "h3render"  # of the names of our pods: no other is touched
    fleet: NamePart = "manual"  # next in the name: whose pod it is among ours
    gpu: str = SERVER_EDITION  # id, as the catalog has it
    image: str = IMAGE
    env_file: Path | None = None  # variables for the pod, as --env-file
    look_s: Annotated[float, Field(gt=0, le=60)] = 15.0  # between two looks of a reconciler
    raise_every_s: Seconds = RAISE_EVERY_S  # between two of its looks that order pods
    surplus_s: Seconds = SURPLUS_S  # for which there are too many pods before one goes
    idle_s: Seconds = IDLE_S  # of a pod that goes; more where a start takes longer
    boot_s: Seconds = BOOT_S  # from a create to the first heartbeat, until some were measured
    ledger: Path = Field(default_factory=default_ledger)  # what was ordered, one JSON line a change

    @property
    def key(self) -> SecretStr:
        """Raises KeyUnusable, which does not show it."""
        if self.runpod_api_key is None:
            raise KeyUnusable("RUNPOD_API_KEY is not set: make a key in RunPod's console, and set it")
        text = self.runpod_api_key.get_secret_value()
        if not (text.isascii() and text.isprintable() and " " not in text):
            raise KeyUnusable("RUNPOD_API_KEY holds a space, a line break or a letter that no key has: set it again")
        return self.runpod_api_key


def read_pod_settings(**given: object) -> PodSettings:
    """The environment's settings, overridden by what is given and not None. Raises GuardRefused."""
    try:
        return PodSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as exc:
        lines = [_say_problem(str(error["loc"][0]), error["input"], error["msg"]) for error in exc.errors()]
        raise GuardRefused("\n".join(lines)) from None  # whose text may have the input


def _say_problem(name: str, value: object, problem: str) -> str:
    variable = name.upper() if name.upper().startswith(("RUNPOD_", "REDIS_")) else f"H3_PODS_{name.upper()}"
    shown = "" if variable.startswith(("RUNPOD_", "REDIS_")) else f" {value!r}"
    return f"{variable}{shown}: {problem.removeprefix('Value error, ').lower()}"
