"""Opens the connection to the queue's Redis: a named one, or the embedded one of this user."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, MaxConnectionsError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from jobs import embedded
from jobs.canceled import heeding_cancel
from jobs.errors import RedisRefused, RedisUnavailable, SettingsInvalid

if TYPE_CHECKING:
    from jobs.settings import ClientSettings  # which is slow to import

CONNECT_TIMEOUT_S = 5.0
RETRIES = 3
MOST_CONNECTIONS = 10_000  # the library's hundred would lock out whoever asks beside a hundred followers
OLDEST_REDIS = (6, 2)
ANSWER_TIMEOUT_S = 30.0  # longer than any blocking read of ours


def connect(settings: "ClientSettings", *, answer_timeout_s: float = ANSWER_TIMEOUT_S, retries: int = RETRIES) -> Redis:
    """A client that has answered. Raises RedisUnavailable with the remedy."""
    url = redis_url(settings)
    with _url_errors(url):
        redis = Redis.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=answer_timeout_s,
            retry=Retry(_backoff(), retries),
        )
    with redis_errors(f"Redis at {shown(url)}"):
        redis.ping()
    return redis


async def connect_async(
    settings: "ClientSettings", *, answer_timeout_s: float = ANSWER_TIMEOUT_S, retries: int = RETRIES
) -> AsyncRedis:
    """An asyncio client that has answered. Raises RedisUnavailable with the remedy."""
    url = await asyncio.to_thread(redis_url, settings)  # which may have to start the embedded server
    with _url_errors(url):
        redis = AsyncRedis.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=answer_timeout_s,
            retry=AsyncRetry(_backoff(), retries),
        )
    try:
        with redis_errors(f"Redis at {shown(url)}"), heeding_cancel():
            await redis.ping()
    except BaseException:  # nobody else can close it
        await redis.aclose()
        raise
    return redis


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=0.5, base=0.05)  # with the library's ten retries it takes a minute


@contextmanager
def _url_errors(url: str) -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        raise RedisRefused(
            f"{shown(url)} is not a Redis URL ({exc}): write redis://host:port/0, rediss://... or unix:///path"
        ) from exc


def require_bytes(redis: Redis | AsyncRedis) -> None:
    """Raises SettingsInvalid for a client that makes text of all answers: events and ids are read as bytes."""
    if redis.get_encoder().decode_responses:
        raise SettingsInvalid("this Redis client has decode_responses=True: give one without, or use `open`")


def require_usable(redis: Redis) -> None:
    """Raises RedisRefused, with the remedy, for a server that would lose jobs or lacks what we need."""
    with redis_errors():
        if remedy := check_rights(redis) or check_version(redis) or check_eviction(redis):
            raise RedisRefused(remedy)


def check_version(redis: Redis) -> str:
    """The remedy, or nothing if it will do."""
    return judge_version(str(redis.info("server")["redis_version"]))


def judge_version(version: str) -> str:
    """The same, of what a server says of itself. Valkey names the Redis that it is compatible with."""
    if read_version(version) >= OLDEST_REDIS:
        return ""
    return f"Redis speaks version {version}: use {'.'.join(map(str, OLDEST_REDIS))} or newer, or Valkey"


def check_eviction(redis: Redis) -> str:
    """The remedy, or nothing if a full memory refuses new jobs and keeps the old ones."""
    policy = str(redis.info("memory").get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        return ""
    return (
        f"Redis drops keys when its memory is full ({policy}), queued jobs too: CONFIG SET maxmemory-policy noeviction"
    )


def check_rights(redis: Redis) -> str:
    """The remedy, or nothing if this user may do what workers and clients do: something of each kind is tried.

    As commands of their own: what a script may not do is told in other words by each version of Redis.
    """
    try:
        for key in (f"rq:probe:{uuid4().hex}", f"h3:probe:{uuid4().hex}"):
            _try_commands(redis, key)
        _try_listening(redis)
    except NoPermissionError as exc:
        return f"this user of Redis may not do what is needed ({exc}): {_RIGHTS_REMEDY}"
    return ""


def _try_commands(redis: Redis, key: str) -> None:
    with redis.pipeline() as pipeline:  # a transaction
        pipeline.hset(key, "x", "1")
        pipeline.hget(key, "x")
        pipeline.delete(key)
        pipeline.execute()
    redis.publish(key, "x")
    redis.eval("return 1", 0)
    redis.ping()
    redis.time()
    redis.info("server")


def _try_listening(redis: Redis) -> None:
    channels = ("rq:pubsub:probe", "h3:probe")
    with redis.pubsub() as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(*channels)
        for _ in channels:
            listener.get_message(timeout=CONNECT_TIMEOUT_S)


# Each word is needed. A pattern is refused after `*`, hence the resets. Of the dangerous commands only INFO is given:
# by it a reaper knows that the server has restarted.
_PATTERNS = "resetkeys ~rq:* ~h3:* resetchannels &rq:* &h3:*"
_COMMANDS = "+@read +@write +@scripting +@transaction +@pubsub +@connection -@dangerous +time +info"
RIGHTS = f"{_PATTERNS} {_COMMANDS}"
_RIGHTS_REMEDY = f"ACL SETUSER NAME {RIGHTS}"


def read_version(version: str) -> tuple[int, ...]:
    """The leading numbers: 2.13.0+cpu is (2, 13, 0)."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdecimal())


def redis_url(settings: "ClientSettings") -> str:
    """The URL to use; starts the embedded server if none is named."""
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    return embedded.ensure_running(state_folder=settings.state_dir, runtime_folder=settings.runtime_dir)


@contextmanager
def redis_errors(where: str = "Redis") -> Iterator[None]:
    """Turn the library's errors into RedisUnavailable."""
    try:
        yield
    except AuthenticationError as exc:
        raise RedisRefused(f"{where} refuses us ({exc}): correct user and password in REDIS_URL") from exc
    except NoPermissionError as exc:
        raise RedisRefused(f"{where} refuses a command ({exc}): {_RIGHTS_REMEDY}") from exc
    except ResponseError as exc:
        raise RedisUnavailable(f"{where} refuses a command ({exc}): {_find_remedy(str(exc))}") from exc
    except MaxConnectionsError as exc:
        raise RedisUnavailable(f"{exc}: each follower of a job has one of its own; share what is followed") from exc
    except RuntimeError as exc:
        if "closed" not in str(exc):
            raise
        # What uvloop says, and asyncio does not, when the connection was closed a moment ago.
        raise RedisUnavailable(f"{where} has closed the connection ({exc}): try again") from exc
    except RedisError as exc:
        raise RedisUnavailable(
            f"{where} does not answer ({exc}): start it, or correct REDIS_URL, "
            "or leave REDIS_URL unset to use the embedded one"
        ) from exc


def _find_remedy(refusal: str) -> str:
    if "WRONGTYPE" in refusal:  # of a pipeline, its command comes before
        return "somebody else has written a key of ours; use a Redis, or a number of its databases, for h3render alone"
    return "see its memory, and whether it is a replica"


def shown(url: str) -> str:
    """A URL without its password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
