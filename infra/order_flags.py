"""The flags that say what a pod is to be, for whichever command orders one."""

from pathlib import Path
from typing import Annotated

import typer

from infra.errors import GuardRefused
from infra.order import VOLUME_PATH, PodOrder, VolumeMount, Workspace, check_env, check_mount_path
from infra.pod_names import check_pod_id, check_slot
from infra.settings import PodSettings

VolumeId = Annotated[str | None, typer.Option(metavar="ID", help="Mounted instead of a workspace.")]
MountPath = Annotated[str | None, typer.Option(help=f"Of the volume; else {VOLUME_PATH}.")]
PublicKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="May log in as root; else the account's keys.")
]
Image = Annotated[str | None, typer.Option(help="(env: H3_PODS_IMAGE; else RunPod's, CUDA 13.0, Torch 2.9.1)")]
WorkspaceGb = Annotated[int, typer.Option(min=10, help="At /workspace, where there is no volume.")]
EnvFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Lines NAME=VALUE for the pod; mode 600 (env: H3_PODS_ENV_FILE)"),
]


def choose_storage(volume: str | None, path: str | None, workspace_gb: int) -> Workspace | VolumeMount:
    """Raises GuardRefused for what contradicts itself."""
    if volume is not None:
        return VolumeMount(volume_id=_check_volume_id(volume), path=check_mount_path(path or VOLUME_PATH))
    if path is not None:
        raise GuardRefused(f"--volume-mount-path {path!a}: there is no --network-volume to mount there")
    return Workspace(size=workspace_gb)


def _check_volume_id(text: str) -> str:
    try:
        return check_pod_id(text)  # RunPod's ids are alike
    except GuardRefused:
        raise GuardRefused(f"--network-volume {text!a} is no id of a volume: RunPod's console lists them") from None


def make_order(
    settings: PodSettings,
    fleet: str,
    count: int,
    name: str,
    storage: Workspace | VolumeMount,
    public_key_file: Path | None,
) -> PodOrder:
    """All that can be checked before anything is asked. Raises GuardRefused, KeyUnusable."""
    from infra.given_files import read_env_file, read_public_key

    slot = check_slot(name)
    public_key = read_public_key(public_key_file) if public_key_file is not None else None
    env = read_env_file(settings.env_file) if settings.env_file is not None else {}
    check_env(env, settings.key.get_secret_value())
    return PodOrder(
        prefix=settings.prefix,
        fleet=fleet,
        slot=slot,
        gpu=settings.gpu,
        count=count,
        image=settings.image,
        storage=storage,
        env=env,
        public_key=public_key,
    )
