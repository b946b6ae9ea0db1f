"""Calls as they lie in the queue: as a client writes them, and as anybody else can."""

import json
import zlib

from jobs.queues import JOB_FUNCTION

FIELDS = {"prompt": "a red kite", "width": 64, "height": 96, "frames": 39, "steps": 2, "seed": 1}


def packed(text):
    """Compressed, as RQ keeps a call; half characters too."""
    return zlib.compress(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


def call(function=JOB_FUNCTION, instance=None, arguments=(), /, **keywords):
    return packed(json.dumps([function, instance, arguments, keywords or {"request": FIELDS}]))


def push(redis, queue, job_id, record=None):
    """Queue an id as anybody could, with whatever record."""
    if record is not None:
        redis.hset(b"rq:job:" + raw(job_id), mapping=record)
    redis.rpush(f"rq:queue:{queue}", raw(job_id))


def raw(job_id):
    return job_id if isinstance(job_id, bytes) else job_id.encode()
