"""A stand-in for the driver's tool, first on PATH: it says what the real one said on another machine."""

from pathlib import Path

from infra.boot.driver import FIELDS

QUERY = f"--query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits"
GPUS = """\
0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.159.04, 00000000:C1:00.0, 97887, 1, 5, 16, 16
1, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.159.04, 00000000:E1:00.0, 97887, 5, 5, 16, 16
"""
DRIVER = """
==============NVSMI LOG==============

Timestamp                                              : Tue Dec  1 00:06:04 2026
Driver Version                                         : 580.159.04
CUDA Version                                           : 13.0

Attached GPUs                                          : 2
"""
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNODE\t0-15\t0\t\tN/A
GPU1\tNODE\t X \t0-15\t0\t\tN/A
"""


def peers(word):
    """Of `topo -p2p`, for two GPUs."""
    legend = "Legend:\n\n  X    = Self\n  OK   = Status Ok\n  NS   = Not supported\n  U    = Unknown\n"
    return f" \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\t{word}\t\n GPU1\t{word}\tX\t\n\n{legend}"


ANSWERS = {
    QUERY: GPUS,
    "-q": DRIVER,
    "topo -m": MATRIX,
    "topo -p2p r": peers("OK"),
    "topo -p2p w": peers("OK"),
    "topo -p2p n": peers("NS"),
    "topo -p2p a": peers("U"),
}  # else it knows no such option


def put_tool(folder: Path, answers=ANSWERS) -> Path:
    """The folder to put first on PATH."""
    folder.mkdir()
    for number, text in enumerate(answers.values()):
        (folder / f"{number}.txt").write_text(text)
    cases = [f"'{asked}') cat '{folder}/{number}.txt' ;;" for number, asked in enumerate(answers)]
    tool = folder / "nvidia-smi"
    lines = ["#!/bin/sh", 'case "$*" in', *cases, "*) echo 'Invalid p2p capability index' >&2; exit 2 ;;", "esac"]
    tool.write_text("\n".join(lines) + "\n")
    tool.chmod(0o755)
    return folder
