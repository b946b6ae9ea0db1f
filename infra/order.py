"""What is ordered, and the body of the request that orders it. Checked here, before anything is sent."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from infra.errors import GuardRefused
from infra.pod_names import make_name

MIN_CUDA = "13.0"
WORKSPACE, VOLUME_PATH = "/workspace", "/runpod-volume"
CONTAINER_DISK_GB = 80
MOST_BODY_BYTES = 102_400  # RunPod answers 413 to more
MOST_ENV = 50  # of RunPod's console
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OUR_ENV = ("FLEET_ID", "FLEET_TOKEN", "LEASE_UNTIL", "H3_WORKER_NAME", "PUBLIC_KEY")

Cloud = Literal["SECURE", "COMMUNITY"]


class BodyPart(BaseModel):
    """Base of what is sent: nothing that the document does not have."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )


class BodyGpu(BodyPart):
    """One type, so many on one machine."""

    id: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1)]
    min_cuda_version: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class Workspace(BodyPart):
    """A disk of the host's, kept over restarts of the pod."""

    size: Annotated[int, Field(ge=10)]  # GB
    path: str = WORKSPACE


class VolumeMount(BodyPart):
    """A network volume, which outlives the pod."""

    volume_id: str
    path: str


class Mounts(BodyPart):
    """One of the two."""

    persistent: Workspace | None = None
    network: tuple[VolumeMount, ...] | None = None


class PodBody(BodyPart):
    """CreatePodRequest of the document, as far as it is used."""

    name: Annotated[str, Field(min_length=1)]
    image: Annotated[str, Field(min_length=1)]
    gpu: BodyGpu
    cloud: Cloud = "SECURE"
    data_center_ids: tuple[str, ...]
    mounts: Mounts
    disk: int = CONTAINER_DISK_GB
    ports: tuple[str, ...] = ("22/tcp",)
    env: Annotated[dict[str, str], Field(repr=False)]
    start_ssh: bool = True

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    def to_shown(self) -> dict[str, object]:
        """For people: the values of `env` are nobody's business."""
        shown = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return shown | {"env": dict.fromkeys(self.env, "***")}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json()).hexdigest()


@dataclass(frozen=True, slots=True)
class PodOrder:
    """What somebody wants, wherever it is and whatever it is called."""

    prefix: str
    fleet: str
    slot: str  # the part of the name that says which
    gpu: str
    count: int
    image: str
    storage: Workspace | VolumeMount
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_key: str | None = field(default=None, repr=False)

    def to_body(self, data_center: str, token: str, lease_until: datetime) -> PodBody:
        """Of one try, with a token of its own. Raises GuardRefused for a body that RunPod would not take."""
        name = make_name(self.prefix, self.fleet, self.slot, token)
        is_volume = isinstance(self.storage, VolumeMount)
        body = PodBody(
            name=name,
            image=self.image,
            gpu=BodyGpu(id=self.gpu, count=self.count, min_cuda_version=MIN_CUDA),
            data_center_ids=(data_center,),
            mounts=Mounts(network=(self.storage,)) if is_volume else Mounts(persistent=self.storage),
            env=self._make_env(name, token, lease_until),
        )
        if (size := len(body.to_json())) > MOST_BODY_BYTES:
            raise GuardRefused(f"the request has {size} bytes, RunPod takes {MOST_BODY_BYTES}: shorten the env file")
        return body

    def _make_env(self, name: str, token: str, lease_until: datetime) -> dict[str, str]:
        ours = {
            "FLEET_ID": self.fleet,
            "FLEET_TOKEN": token,
            "LEASE_UNTIL": lease_until.isoformat(timespec="seconds"),
            "H3_WORKER_NAME": name,  # by which the queue tells whether this pod is busy
        }
        return {**self.env, **ours, **({"PUBLIC_KEY": self.public_key} if self.public_key is not None else {})}


def check_env(env: Mapping[str, str], key: str) -> None:
    """What may go onto a pod. Raises GuardRefused, without a value.

    key  of the account, which is never sent to one
    """
    if len(env) + len(OUR_ENV) > MOST_ENV:
        raise GuardRefused(f"the env file has {len(env)} variables; beside ours there is room for {MOST_ENV - 5}")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name):
            raise GuardRefused(f"env file: {name!a} is no name of a variable")
        if name in OUR_ENV or name.startswith("RUNPOD_"):
            raise GuardRefused(f"env file: {name} is set by h3render or by RunPod: leave it out")
        if key in value:
            raise GuardRefused(f"env file: {name} holds the account's key, which never goes onto a pod: leave it out")


def check_mount_path(path: str) -> str:
    """An absolute folder of a container."""
    folder = PurePosixPath(path)
    if not folder.is_absolute() or len(folder.parts) < 2 or ".." in folder.parts or not path.isprintable():
        raise GuardRefused(f"--volume-mount-path {path!a}: name an absolute folder, such as {VOLUME_PATH}")
    return path
