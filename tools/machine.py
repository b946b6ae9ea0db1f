"""What a report says about the machine it was made on."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch


def describe_machine(*, on_gpus: bool = True) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **(describe_gpus() if on_gpus else {"devices": [describe_processor()]}),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": shlex.join(["python", *sys.argv]),
    }


def describe_gpus() -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    return {
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": driver,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def describe_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
