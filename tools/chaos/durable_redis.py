"""A Redis that has on the disk whatever it has confirmed, to kill and to start again."""

import subprocess
from pathlib import Path

from jobs import embedded
from tests.servers import DIES_WITH_PARENT


class DurableRedis:
    """With `appendfsync always`, from its first command on. Starts in the calling thread, and dies with that."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._socket = folder, folder / "redis.sock"
        self.url = embedded.socket_url(self._socket)
        self.start()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_PARENT, embedded.find_binary(), *self._flags()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        embedded.await_ready(self._process, self._folder, self._socket)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _flags(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]
