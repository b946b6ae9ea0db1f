"""What is asked of Redis, written once for blocking and for asyncio clients.

An operation is a generator: it yields calls and is sent their answers. The two clients of redis-py have the same
methods; those of the one answer, those of the other are awaited: in that alone `run` and `run_async` differ.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from jobs.canceled import heeding_cancel
from jobs.connection import redis_errors

Answer = TypeVar("Answer")
Call = Callable[[Any], Any]  # of a client: its answer, or what gives it when awaited
Operation = Generator[Call, Any, Answer]


def run(operation: Operation[Answer], redis: Redis) -> Answer:
    """The operation's result. Raises RedisUnavailable, and what the operation raises."""
    with redis_errors():
        try:
            call = next(operation)
            while True:
                try:
                    answer = call(redis)
                except RedisError as exc:  # the operation may know what to do
                    call = operation.throw(exc)
                else:
                    call = operation.send(answer)
        except StopIteration as end:
            result: Answer = end.value
            return result


async def run_async(operation: Operation[Answer], redis: AsyncRedis) -> Answer:
    """The operation's result. Raises RedisUnavailable, and what the operation raises."""
    with redis_errors():
        try:
            call = next(operation)
            while True:
                try:
                    with heeding_cancel():
                        answer = await call(redis)
                except RedisError as exc:
                    call = operation.throw(exc)
                else:
                    call = operation.send(answer)
        except StopIteration as end:
            result: Answer = end.value
            return result


def pipeline(*calls: Call, tolerant: bool = False) -> Call:
    """Several calls on one way; the answer is a list of theirs.

    tolerant  of one that Redis refuses, the answer is its RedisError
    """

    def send(redis: Any) -> Any:
        commands = redis.pipeline(transaction=False)
        for call in calls:
            call(commands)
        return commands.execute(raise_on_error=not tolerant)

    return send
