"""What a report says about the machine it was made on."""

import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

NODES, PCI_DEVICES = Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def describe_machine(*, on_gpus: bool = True) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **(describe_gpus() if on_gpus else {"devices": [describe_processor()]}),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": shlex.join(_command()),
    }


def _command() -> list[str]:
    """As somebody would type it."""
    if Path(sys.argv[0]).name.removesuffix(".py") == "h3render":
        return ["h3render", *sys.argv[1:]]
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.name != "__main__":  # python -m, which has made a path of it
        return ["python", "-m", spec.name, *sys.argv[1:]]
    return ["python", *sys.argv]


def describe_gpus() -> dict[str, object]:
    return {
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": next(iter(query_gpus("driver_version")), None),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        **describe_links(),
    }


def describe_links() -> dict[str, object]:
    """How GPUs and processors are connected, for the times of several GPUs hang on it. None is what nobody tells."""
    return {
        "topology": ask_driver("topo", "-m"),
        "p2p_read": ask_driver("topo", "-p2p", "r"),
        "p2p_write": ask_driver("topo", "-p2p", "w"),
        "numa": {
            "nodes": {path.parent.name: path.read_text().strip() for path in sorted(NODES.glob("node*/cpulist"))},
            "gpus": {address: find_node(address) for address in query_gpus("pci.bus_id")},
        },
    }


def find_node(address: str) -> int | None:
    """The NUMA node that a GPU is at."""
    # The driver writes 00000000:1B:00.0, the kernel 0000:1b:00.0; and -1 where it knows none, as in virtual machines.
    path = PCI_DEVICES / address.lower()[4:] / "numa_node"
    node = int(path.read_text()) if path.exists() else -1
    return None if node < 0 else node


def query_gpus(field: str) -> list[str]:
    """Of every GPU of the machine."""
    return (ask_driver(f"--query-gpu={field}", "--format=csv,noheader") or "").split()


def ask_driver(*arguments: str) -> str | None:
    """What nvidia-smi says, without its colours; None if it cannot say."""
    try:
        command = ["nvidia-smi", *arguments]
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return COLOURS.sub("", asked.stdout).strip()


def describe_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
