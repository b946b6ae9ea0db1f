"""Whether a machine will do: a pure judgement of what was read of it. What is unknown is no fault."""

from collections.abc import Iterator

from infra.boot.settings import BootSettings
from infra.boot.topology import Topology
from infra.order import MIN_CUDA

# Ranks and the worker hand tensors to each other there, and NCCL's buffers are there where P2P does not work: the 8 GiB
# that an eight-GPU worker asks for, shared out.
LEAST_SHM_BYTES_PER_GPU = 1 << 30


def find_faults(settings: BootSettings, topology: Topology) -> Iterator[str]:
    """Each says what, with values, and the remedy."""
    if settings.redis_url is None:
        yield "REDIS_URL is not set: put the queue's into the env file of the order"
    if settings.gpus != 0:
        yield from _find_gpu_faults(settings, topology)


def _find_gpu_faults(settings: BootSettings, topology: Topology) -> Iterator[str]:
    found, told = len(topology.gpus), topology.answers["gpus"]
    if found == 0:
        yield f"no GPU: {told.stderr or told.stdout or 'the driver names none'}; another machine is needed"
        return
    if settings.gpus is not None and found != settings.gpus:
        yield f"{found} GPUs where {settings.gpus} were ordered; another machine is needed"
    least = tuple(map(int, MIN_CUDA.split(".")))
    if topology.cuda is not None and topology.cuda < least:
        has = ".".join(map(str, topology.cuda))
        yield f"the driver runs CUDA {has} where {MIN_CUDA} is needed: order with minCudaVersion {MIN_CUDA}"
    if topology.shm_bytes < (needed := found * LEAST_SHM_BYTES_PER_GPU):
        has = f"{topology.shm_bytes / 2**30:.2g} GiB"
        yield f"shared memory: /dev/shm has {has}, {found} GPUs need {needed >> 30}: --shm-size, or another machine"
