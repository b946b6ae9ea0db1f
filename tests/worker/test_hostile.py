"""Whoever can write to Redis can fill the queues with anything: the real command survives it, and runs none of it."""

import json
import os
import pickle
import random
import zlib
from pathlib import Path

import pytest
from redis import Redis

from jobs.client import Client
from jobs.lease import LEASES_KEY, MOST_CALL_BYTES, QUARANTINE_KEY
from jobs.queues import JOB_FUNCTION, QueueName
from tests.end_to_end.conftest import start_worker  # noqa: F401  # a fixture
from tests.worker.calls import FIELDS, call, packed

HOW_MANY, HOW_MANY_IN_FULL = 500, 2_000
SEED = 20_26
DEADLINE_S = 90.0
MOST_MEMORY_KIB = 1 << 20  # of the worker; half of it is torch


@pytest.fixture
def checkpoint(tmp_path):
    """For `start_worker`: the runner has no model."""
    return tmp_path


class Bomb:
    """Touches a file where it is unpickled."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self._marker}",)


class Hostile:
    """Makes one piece of rubbish after the other, each with an id that no other has."""

    def __init__(self, rng, marker):
        self._rng, self._marker = rng, marker
        self._touch = f"touch {marker}"

    def write(self, pipeline, number):
        """Queue one. Gives its id."""
        job_id = self._id(number)
        pipeline.rpush(f"rq:queue:{self._rng.choice(list(QueueName))}", job_id)
        if self._rng.random() < 0.2:
            self._write_no_record(pipeline, b"rq:job:" + job_id)
        else:
            pipeline.hset(b"rq:job:" + job_id, mapping=self._record())
        if self._rng.random() < 0.1:
            kind = self._rng.choice(["h3:events:", "rq:results:", "h3:losses:", "rq:executions:"])
            pipeline.set(kind.encode() + job_id, b"of a wrong type")
        return job_id

    def _id(self, number):
        weird = [
            *(
                b"../../etc/passwd",
                b"a/b",
                b"..",
                b"a.b",
                b" ",
                b"\n",
                b"\0",
                b"\xff\xfe",
                "凧".encode(),
                b"\xed\xa0\x80",
            ),
            *(
                b"h3:leases:",
                b"rq:queue:high",
                b"*",
                b"%00",
                b"a:1",
                b"'; FLUSHALL; '",
                b"-" * 190,
                b"\r\nFLUSHALL\r\n",
            ),
        ]
        if self._rng.random() < 0.8:
            return b"job-%d" % number
        beginning = b"%d-%b" % (number, self._rng.choice(weird))
        return beginning + (b"x" * self._rng.randrange(200, 5_000) if self._rng.random() < 0.2 else b"")

    def _write_no_record(self, pipeline, key):
        self._rng.choice(
            [
                lambda: None,
                lambda: pipeline.set(key, packed("[]")),
                lambda: pipeline.rpush(key, "data", call()),
                lambda: pipeline.sadd(key, "data"),
                lambda: pipeline.zadd(key, {"data": 1}),
                lambda: pipeline.xadd(key, {"data": call()}),
                lambda: pipeline.hset(key, "datum", call()),
            ]
        )()

    def _record(self):
        record = {"data": self._call(), "status": "queued", "origin": "high"}
        for field in self._rng.sample(sorted(self._garbage), self._rng.randrange(5)):
            record[field] = self._rng.choice(self._garbage[field])
        return record

    @property
    def _garbage(self):
        numbers = [b"", b"nan", b"-inf", b"1e999", b"0x7f", b"-1", b"\xff\x00", b"9" * 300, b"one"]
        counters = ("h3_attempts", "h3_fatal", "h3_interruptions", "h3_mark", "h3_began", "h3_queued_ms", "timeout")
        calls = [b"os.system", b"worker.rq_worker.render", b"\xff"]
        return {
            **dict.fromkeys(counters, numbers),
            "status": [b"", b"busy", b"started", b"\xff", b"STARTED"],
            "origin": [b"", b"../high", b"\xff", b"x" * 1000],
            "created_at": [b"yesterday", b"\xff"],
            "enqueued_at": [b"9999-99-99T99:99:99Z"],
            "meta": [pickle.dumps(Bomb(self._marker)), b"\xff", packed("{")],
            "success_callback_name": calls,
            "failure_callback_name": calls,
            "h3_lease": numbers,
            "h3_nonce": numbers,
            "h3_kept": [b"{", b"\xff", b'{"checkpoint": 7}'],
            "h3_outcome": [b"", b"failed", b"dead", b"\xff"],
            "h3_offer": [b"{"],
            "\0\n": [b"\xff"],
        }

    def _call(self):
        return self._rng.choice(
            [self._other_call, self._pickle, self._bytes, self._bomb, self._nested, self._malformed, self._odd_json]
        )()

    def _other_call(self):
        function, *arguments = self._rng.choice(
            [
                ("os.system", self._touch),
                ("subprocess.getoutput", self._touch),
                ("subprocess.run", ["touch", str(self._marker)]),
                ("builtins.eval", f"__import__('os').system('{self._touch}')"),
                ("builtins.exec", f"open({str(self._marker)!r}, 'w')"),
                ("pathlib.Path.touch", str(self._marker)),
                ("shutil.rmtree", str(self._marker.parent)),
                ("worker.rq_worker.RenderWorker.request_stop", 15, None),
                ("os.abort",),
                ("sys.exit", 1),
                (f"{JOB_FUNCTION}.__globals__", "os"),
            ]
        )
        if self._rng.random() < 0.2:  # ours, with more than it takes
            return call(JOB_FUNCTION, self._rng.choice([None, "os"]), [function, *arguments], request=FIELDS)
        if self._rng.random() < 0.2:
            return call(JOB_FUNCTION, request=FIELDS, function=function, arguments=arguments)
        return call(function, None, arguments, command=self._touch)

    def _pickle(self):
        value = self._rng.choice([Bomb(self._marker), (JOB_FUNCTION, None, (), {"request": Bomb(self._marker)})])
        text = pickle.dumps(value, self._rng.randrange(6))
        return self._rng.choice([text, zlib.compress(text)])

    def _bytes(self):
        good = call()
        return self._rng.choice(
            [
                b"",
                self._rng.randbytes(self._rng.randrange(300)),
                b"\x78\x9c" + self._rng.randbytes(100),
                good[: self._rng.randrange(len(good))],
                zlib.decompress(good),
                packed(self._rng.randbytes(100)),
                b"x" * (MOST_CALL_BYTES + self._rng.randrange(1, 9)),
            ]
        )

    def _bomb(self):
        megabytes = self._rng.choice([2, 20])
        return _inflating(self._rng.choice([b"\0", b" ", b"["]), megabytes)

    def _nested(self):
        depth = self._rng.choice([10, 900, 950, 990, 1_000, 3_000, 100_000])
        opening, closing = self._rng.choice([("[", "]"), ('{"a":', "}")])
        deep = opening * depth + "0" + closing * depth
        return packed(
            self._rng.choice(
                [
                    deep,
                    f"[{deep}, null, [], {{}}]",
                    f'["{JOB_FUNCTION}", null, [], {deep}]',
                    f'["{JOB_FUNCTION}", null, [], {{"request": {deep}}}]',
                    f'["{JOB_FUNCTION}", null, [], {{"request": {{"prompt": {deep}}}}}]',
                ]
            )
        )

    def _malformed(self):
        request = dict(FIELDS)
        field = self._rng.choice(list(FIELDS))
        wrong = [None, True, [], {}, -1, 10**100, 0.5, float("nan"), float("inf"), "", "\ud800", "x" * 30_000]
        if self._rng.random() < 0.2:
            del request[field if field != "steps" else "seed"]
        elif self._rng.random() < 0.2:
            beginning = self._rng.choice(["prompt", "\ud800", "__class__"])
            request |= {f"{beginning}{n}": 0 for n in range(20_000)}
        elif self._rng.random() < 0.2:
            request[self._rng.choice(["promt", "callback", "__class__", "model_config", "\ud800", ""])] = self._touch
        else:
            request[field] = self._rng.choice(wrong)
        return call(request=request)

    def _odd_json(self):
        shapes = ["null", "{}", "[]", "[1,2,3,4]", '"four"', '{"a":1,"b":2,"c":3,"d":4}', "NaN", "1" * 10_000]
        requests = [None, [], "x", 7, {"request": FIELDS}, [FIELDS]]
        if self._rng.random() < 0.5:
            return packed(self._rng.choice(shapes))
        return packed(json.dumps([JOB_FUNCTION, None, [], {"request": self._rng.choice(requests)}]))


def _inflating(of, megabytes):
    """A little of zlib that becomes a lot."""
    compressor = zlib.compressobj(9)
    block = of * (1 << 20)
    first, other = (compressor.compress(block) + compressor.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + (megabytes - 1) * other + compressor.flush()


@pytest.mark.slow
def test_hostile_jobs_are_put_away_and_the_good_one_is_rendered(
    redis_url,
    file_store_url,
    start_worker,  # noqa: F811
    tmp_path,
    full,
):
    how_many = HOW_MANY_IN_FULL if full else HOW_MANY
    marker = tmp_path / "marker"
    with Redis.from_url(redis_url) as redis:
        hostile = Hostile(random.Random(SEED), marker)
        with redis.pipeline(transaction=False) as pipeline:
            ids = [hostile.write(pipeline, number) for number in range(how_many)]
            pipeline.execute()
        assert len(set(ids)) == how_many == sum(redis.llen(f"rq:queue:{queue}") for queue in QueueName)
        for key in ("rq:wip:high", "rq:failed:batch", "rq:queue:default:intermediate", "rq:clean_registries:high"):
            redis.set(key, "of a wrong type")
        good = Client(redis).submit(FIELDS, queue=QueueName.BATCH)
        # All that RQ would run, or unpickle, or count by, of a job that is rendered.
        callbacks = dict.fromkeys(
            ("success_callback_name", "failure_callback_name", "stopped_callback_name"), "os.system"
        )
        bombs = dict.fromkeys(("meta", "result"), pickle.dumps(Bomb(marker)))
        redis.hset(f"rq:job:{good.id}", mapping={**callbacks, **bombs, "h3_attempts": "nan", "status": "?"})

        worker = start_worker(
            *("--url", redis_url, "--store", file_store_url, "--ranks", "1"),
            *("--runner", "tests.worker.runners:Light"),
        )
        assert good.wait(timeout_s=DEADLINE_S).attempt == 1

        assert not marker.exists()
        assert worker.poll() is None
        log = (tmp_path / "worker.log").read_text()
        assert log.count("starting the fleet") == 1  # or it has become a new worker under its old pid
        assert "Traceback" not in log
        assert _peak_kib(worker.pid) < MOST_MEMORY_KIB
        reasons = redis.hgetall(QUARANTINE_KEY)
        assert [job_id for job_id in ids if not reasons.get(job_id[:200])] == []
        assert [redis.llen(f"rq:queue:{queue}") for queue in QueueName] == [0, 0, 0]
        assert redis.zcard(LEASES_KEY) == 0
        assert redis.ping()


def _peak_kib(pid):
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])
