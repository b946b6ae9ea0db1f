"""What there is to rent: GPU types, data centers, and the machines that stand in them. A small market by default."""

from dataclasses import dataclass, field

SERVER_EDITION = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
MIG_SLICE = f"{SERVER_EDITION} MIG 1g.24gb"  # begins with the id above: only equality tells them apart
H200 = "NVIDIA H200"
MI300X = "AMD Instinct MI300X OAM"


@dataclass(frozen=True, slots=True)
class GpuType:
    id: str
    name: str
    memory: int  # GB
    secure_usd: float  # an hour, for one GPU
    community_usd: float
    manufacturer: str = "NVIDIA"
    pool: str | None = None  # of serverless

    def price_usd(self, cloud: str) -> float:
        return self.secure_usd if cloud == "SECURE" else self.community_usd


@dataclass(frozen=True, slots=True)
class DataCenter:
    id: str
    name: str
    country: str
    region: str = "NORTH_AMERICA"
    volume_types: tuple[str, ...] = ()
    compliance: tuple[str, ...] = ("SOC_2_TYPE_2",)
    global_network: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """One machine; a pod's GPUs are all in one."""

    data_center: str
    gpu_id: str
    gpus: int = 8
    cuda: str | None = "13.0"  # None: it reports none
    cloud: str = "SECURE"


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing new is placed in a data center; what runs there goes on."""

    data_center: str
    since: float
    until: float


@dataclass(slots=True)
class Catalog:
    """A test may add and take away machines and gaps while pods run."""

    gpu_types: list[GpuType] = field(default_factory=lambda: list(GPU_TYPES))
    data_centers: list[DataCenter] = field(default_factory=lambda: list(DATA_CENTERS))
    hosts: list[Host] = field(default_factory=lambda: list(_hosts()))
    gaps: list[Gap] = field(default_factory=list)

    def gpu_type(self, gpu_id: str) -> GpuType | None:
        return next((gpu for gpu in self.gpu_types if gpu.id == gpu_id), None)

    def data_center(self, data_center_id: str) -> DataCenter | None:
        return next((center for center in self.data_centers if center.id == data_center_id), None)

    def max_count(self, gpu_id: str, cloud: str) -> int:
        """GPUs of the largest machine of this type, taken or not."""
        return max((host.gpus for host in self.hosts if (host.gpu_id, host.cloud) == (gpu_id, cloud)), default=0)

    def is_closed(self, data_center_id: str, now: float) -> bool:
        return any(gap.data_center == data_center_id and gap.since <= now < gap.until for gap in self.gaps)


GPU_TYPES = (
    GpuType(MIG_SLICE, "RTX PRO 6000 MIG 1g", 24, 0.55, 0.0),
    GpuType(SERVER_EDITION, "RTX PRO 6000", 96, 1.89, 1.69),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 MaxQ", 96, 1.79, 1.59),
    GpuType(H200, "H200 SXM", 141, 3.99, 3.59, pool="HOPPER_141"),
    GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34, pool="ADA_24"),
    GpuType(MI300X, "MI300X", 192, 2.49, 2.29, manufacturer="AMD"),
)
DATA_CENTERS = (
    DataCenter("US-KS-2", "US Kansas 2", "US", volume_types=("STANDARD", "HIGH_PERFORMANCE"), global_network=True),
    DataCenter("US-TX-3", "US Texas 3", "US", volume_types=("STANDARD",)),
    DataCenter("US-GA-2", "US Georgia 2", "US"),
    DataCenter("EU-RO-1", "EU Romania 1", "RO", "EUROPE", ("STANDARD",), ("GDPR", "ISO_IEC_27001"), True),
)


def _hosts():
    """Eight GPUs in one machine are in three places, one of them without volumes; small machines in all."""
    yield from (Host("US-KS-2", SERVER_EDITION) for _ in range(4))
    yield from (Host("US-GA-2", SERVER_EDITION) for _ in range(2))
    yield Host("EU-RO-1", SERVER_EDITION)
    yield Host("US-TX-3", SERVER_EDITION, gpus=4)
    yield Host("US-TX-3", SERVER_EDITION, cuda="12.8")
    yield Host("US-TX-3", SERVER_EDITION, cloud="COMMUNITY")
    yield Host("US-KS-2", MIG_SLICE)
    yield Host("US-KS-2", H200)
    yield from (Host("EU-RO-1", "NVIDIA GeForce RTX 4090", gpus=2, cuda="12.8") for _ in range(8))
    yield Host("US-TX-3", MI300X, cuda=None)
