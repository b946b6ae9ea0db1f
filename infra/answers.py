"""What RunPod's API v2 answers, as far as it is used. Fields that are not are ignored, and so is what a pod's `env` has
beside the three variables that say whose it is: it comes back in clear."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from infra.errors import AnswerInvalid
from infra.pod_names import FLEET, TOKEN

MOST_PROBLEMS = 5  # of an answer that are told
STOCK_ORDER = ("HIGH", "MEDIUM", "LOW")  # a word that is none of these counts as none

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Answer(BaseModel):
    """Base of all: RunPod's names are in camel case, and more fields may come."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, hide_input_in_errors=True)


# --- catalog


class Stock(Answer):
    """How much of a GPU type one data center has, in a word."""

    id: Text
    name: str
    availability: str


class ByCloud(Answer):
    """Of one GPU, in USD per hour."""

    secure: Usd
    community: Usd


class CountByCloud(Answer):
    """GPUs of the largest machine; no stock."""

    secure: int
    community: int


class CudaVersion(Answer):
    """And whether a machine that has it is free."""

    version: str
    available: bool


class GpuType(Answer):
    """One type of GPU, and where it is free at the count that was asked for."""

    id: Text
    name: str
    memory: int  # GB
    price: ByCloud
    max_count: CountByCloud
    availability: str = "NONE"
    data_centers: tuple[Stock, ...] = ()
    cuda_versions: tuple[CudaVersion, ...] = ()

    @property
    def places(self) -> list[Stock]:
        """Data centers where some are free, most stock first."""
        free = [place for place in self.data_centers if place.availability in STOCK_ORDER]
        return sorted(free, key=lambda place: STOCK_ORDER.index(place.availability))


class GpuTypes(Answer):
    """The list of them."""

    gpus: tuple[GpuType, ...]


class DataCenter(Answer):
    """Where machines stand."""

    id: Text
    name: str
    region: str
    network_volume_types: tuple[str, ...]  # none: no network volume can be there


class DataCenters(Answer):
    """The list of them."""

    data_centers: tuple[DataCenter, ...]


class NetworkVolume(Answer):
    """Storage that outlives pods, in one data center."""

    id: Text
    name: str
    size: int  # GB
    data_center: Text


# --- pods

GONE, STOPPED = "TERMINATED", ("EXITED", "ERROR")
ON_THE_WAY = ("PROVISIONING", "STARTING")


class PodGpu(Answer):
    """What it has."""

    id: Text
    count: int = 1


class PersistentMount(Answer):
    """On the host: it dies with the pod."""

    size: int  # GB
    path: str


class NetworkMount(Answer):
    """A network volume."""

    volume_id: Text
    path: str


class PodMounts(Answer):
    """Of the two kinds, a pod has one at most."""

    persistent: PersistentMount | None = None
    network: tuple[NetworkMount, ...] = ()


class SshEndpoint(Answer):
    """Where a pod takes SSH."""

    host: str
    port: int
    username: str


class PodSsh(Answer):
    """`direct` is full SSH, as root; `proxy` a shell by the keys of the account."""

    proxy: SshEndpoint | None
    direct: SshEndpoint | None


def _read_fleet(value: object) -> str | None:
    return value if isinstance(value, str) and FLEET.fullmatch(value) else None


def _read_token(value: object) -> str | None:
    return value if isinstance(value, str) and TOKEN.fullmatch(value) else None


def _read_lease_until(value: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
        return read.astimezone(UTC) if read is not None and read.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


class OurEnv(BaseModel):
    """What an order wrote into a pod's `env` about itself. Anybody may write there: nonsense is as good as nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, populate_by_name=True)

    fleet: Annotated[str | None, BeforeValidator(_read_fleet)] = Field(None, alias="FLEET_ID")
    token: Annotated[str | None, BeforeValidator(_read_token)] = Field(None, alias="FLEET_TOKEN")
    lease_until: Annotated[datetime | None, BeforeValidator(_read_lease_until)] = Field(None, alias="LEASE_UNTIL")


def _read_env(value: object) -> object:
    return value if isinstance(value, dict | OurEnv) else {}


class Pod(Answer):
    """One rented machine."""

    id: Text
    name: str
    status: str  # one of six words; another one is new to us
    gpu: PodGpu | None = None  # none: it computes on CPUs
    image: str | None = None
    cloud: str
    data_center_id: str | None
    cuda_version: str | None
    mounts: PodMounts
    ports: tuple[str, ...]
    ssh: PodSsh
    disk: int = 0  # GB of the container's
    env: Annotated[OurEnv, BeforeValidator(_read_env)] = Field(default_factory=OurEnv, exclude=True, repr=False)
    cost: Usd  # USD per hour, now
    runtime: dict[str, object] | None  # also {} while there is nothing to tell
    created_at: AwareDatetime
    cluster: dict[str, object] | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == GONE

    @property
    def has_failed(self) -> bool:
        return self.status in (*STOPPED, GONE)

    @property
    def is_up(self) -> bool:
        """As far as RunPod can tell: an exited worker is restarted, and still counts as running."""
        needs_ssh = "22/tcp" in self.ports
        return self.status == "RUNNING" and bool(self.runtime) and (not needs_ssh or self.ssh.direct is not None)

    def age_s(self, now: datetime) -> float:
        return max(0.0, (now - self.created_at).total_seconds())


class Pagination(Answer):
    """Where a list goes on."""

    next_cursor: str | None
    has_next_page: bool


class PodPage(Answer):
    """A list of pods, or a part of it."""

    pods: tuple[Pod, ...]
    pagination: Pagination | None = None  # absent from the older document: there is one page


# --- logs and billing


class LogLine(Answer):
    """One line of a pod's log."""

    ts: AwareDatetime
    source: str
    line: str


class BilledAmounts(Answer):
    """In USD."""

    total_amount: float
    gpu_amount: float
    disk_amount: float


class PodBill(BilledAmounts):
    """Of one pod, in one span of time."""

    pod_id: Text
    start_time: AwareDatetime
    end_time: AwareDatetime


class BillingMetadata(Answer):
    """Of all records."""

    totals: BilledAmounts


class PodBilling(Answer):
    """What pods have cost."""

    records: tuple[PodBill, ...]
    metadata: BillingMetadata


Kind = TypeVar("Kind", bound=Answer)


def parse_answer(kind: type[Kind], body: bytes | str, what: str) -> Kind:
    """Raises AnswerInvalid, which names the fields and never a value. pydantic's reader refuses what nests too deep."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        problems = [f"{_say_place(error['loc'])}{error['msg'].lower()}" for error in exc.errors(include_input=False)]
    raise AnswerInvalid(f"{what}: RunPod's answer is not what its document has: {'; '.join(problems[:MOST_PROBLEMS])}")


def _say_place(location: Sequence[int | str]) -> str:
    return "".join(f"{part}." for part in location).rstrip(".") + ": " if location else ""
