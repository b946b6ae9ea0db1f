"""Attempts at one job on a real Redis and a real store that a test may disturb; what they yield is the test's."""

from concurrent.futures import ThreadPoolExecutor

from jobs.client import Client
from jobs.file_store import FileStore
from jobs.lease import Leases
from jobs.result import Result
from tests.jobs.leasing import read_log
from tests.waiting import eventually
from worker import items
from worker.outputs import OutputLimits, Outputs
from worker.payload import read_waiting

REQUEST = {"prompt": "a red kite", "width": 64, "height": 64, "frames": 39, "steps": 2, "seed": 1}
RESULT, CLAIM, PLAYLIST = "result.json", "attempts/1/attempt.json", "attempts/1/playlist.m3u8"
DEADLINE_S = 30.0
MOMENT_S = 0.2  # in which what must wait is seen to wait
FEW_BYTES = 10


class ScriptedStore(FileStore):
    """The real store in a folder; a test may look at each call, and fail it, before and after it is carried out."""

    def __init__(self, root, before=lambda *_: None, after=lambda *_: None):
        super().__init__(root)
        self.before, self.after = before, after
        self.calls = []  # method and name below the job, of those that succeeded

    def put(self, key, body, **headers):
        return self._carry_out("put", key, lambda: FileStore.put(self, key, body, **headers))

    def put_once(self, key, body, **headers):
        return self._carry_out("put_once", key, lambda: FileStore.put_once(self, key, body, **headers))

    def stat(self, key):
        return self._carry_out("stat", key, lambda: FileStore.stat(self, key))

    def fetch(self, key, path):
        return self._carry_out("fetch", key, lambda: FileStore.fetch(self, key, path))

    def get(self, key):
        return self._carry_out("get", key, lambda: FileStore.get(self, key))

    def _carry_out(self, method, key, do):
        name = key.partition("/")[2]
        self.before(method, name)
        done = do()
        self.calls.append((method, name))
        self.after(method, name)
        return done


class Job:
    """One job on a real Redis, and the attempts at it."""

    def __init__(self, redis, folder, **fields):
        self._redis, self._folder = redis, folder
        self._begun = []
        self.id = Client(redis).submit(REQUEST | fields).id
        self.heard = []  # by whoever runs the attempt

    def begin(self, store, **limits):
        """The next attempt."""
        leases = Leases(self._redis)
        [[waiting]] = leases.peek(["default"], 0, 1)
        self.lease = leases.claim(waiting, "w")
        request, limits = read_waiting(waiting), OutputLimits(**{"least_free_bytes": 0, **limits})
        outputs = Outputs(store, "file:///s", self.lease, request, limits=limits, on_failure=self.heard.append)
        self._begun.append(outputs)
        outputs.begin()
        return outputs

    def lose(self):
        """The running attempt is taken for lost, and the job waits for another."""
        self.lease.hand_back("fatal", "lost")

    def close(self):
        for outputs in self._begun:
            outputs.close()

    def file(self, name, content=b"x" * FEW_BYTES):
        """A local file, as a runner makes it."""
        folder = self._folder / f"work-{len(self._begun)}"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / name

    def files_left(self):
        return [path.name for path in self._folder.glob("work-*/*")]

    def told(self):
        """Since the attempts began."""
        return [event for event in read_log(self._redis, self.id) if event.kind not in ("queued", "started")]

    def kinds(self):
        return [event.kind for event in self.told()]


def content(store, job, name):
    return store.get(f"{job.id}/{name}")


def names(store, job):
    return [key.removeprefix(f"{job.id}/") for key in store.list(f"{job.id}/")]


def listed(store, job, playlist):
    """The segments that a playlist names."""
    return [line for line in content(store, job, playlist).decode().splitlines() if not line.startswith("#")]


def result_of(store, job):
    return Result.model_validate_json(content(store, job, RESULT))


def in_thread(function, *arguments):
    """Call it in a thread of its own; the future's result comes with a deadline."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future


# --- what a runner yields


def header(job):
    return items.StreamHeader(job.file("init.mp4", b"header"), 2)


def segment(job, index):
    return items.Segment(index, job.file(f"segment-{index:05d}.m4s", b"segment %d" % index), (17, 22)[index] / 24)


def preview(job, step=1):
    return items.Preview(step, job.file(f"preview-{step:04d}.png"))


def checkpoint(job, step):
    return items.Checkpoint(step, job.file(f"checkpoint-{step:04d}.safetensors", b"step %d" % step))


def finished(job):
    return items.Finished(job.file("video.mp4", b"video"), job.file("report.json", b"{}"))


def publish(outputs, *yielded):
    for item in yielded:
        outputs.publish(item)


def publish_all(outputs, job):
    """A whole render but for its end."""
    publish(outputs, items.TextEncoded(3, 0.1), items.StepDone(1, 2, 1.0, 0.5), preview(job), checkpoint(job, 2))
    publish(outputs, header(job), segment(job, 0), segment(job, 1))


def render(outputs, job):
    publish_all(outputs, job)
    return outputs.commit(finished(job))


def begin_second(store, job, *yielded_by_first):
    """A second attempt, after a first that has published this much."""
    publish(job.begin(store), *yielded_by_first)
    eventually(lambda: len(job.told()) == len(yielded_by_first))
    job.lose()
    return job.begin(store)
