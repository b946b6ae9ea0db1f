"""Rows of a file, made without one."""

from jobs.request import GenerateRequest
from jobs.shots.check import Shot

QUEUE = "batch"


def shot(prompt, label=None, line=2, queue=QUEUE, **fields):
    """One without a label is called by its place."""
    request = GenerateRequest(prompt=prompt, seconds=1.0, **fields)
    return Shot(label or f"row-{line - 1}", label is not None, line, queue, request)


def shots(*prompts):
    return [shot(prompt, line=line) for line, prompt in enumerate(prompts, 2)]


def waiting(redis):
    """Jobs in their order."""
    return [job_id.decode() for job_id in redis.lrange(f"rq:queue:{QUEUE}", 0, -1)]
