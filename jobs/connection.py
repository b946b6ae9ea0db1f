"""Opens the connection to the queue's Redis: a named one, or the embedded one of this user."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from jobs import embedded
from jobs.errors import RedisUnavailable
from jobs.settings import ClientSettings

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0  # longer than any blocking read of ours


def connect(settings: ClientSettings) -> Redis:
    """A client that has answered. Raises RedisUnavailable with the remedy."""
    url = redis_url(settings)
    try:
        redis = Redis.from_url(url, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=ANSWER_TIMEOUT_S)
    except ValueError as exc:
        raise RedisUnavailable(
            f"{shown(url)} is not a Redis URL ({exc}): write redis://host:port/0, rediss://... or unix:///path"
        ) from exc
    with redis_errors(f"Redis at {shown(url)}"):
        redis.ping()
    return redis


def redis_url(settings: ClientSettings) -> str:
    """The URL to use; starts the embedded server if none is named."""
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    return embedded.ensure_running(state_folder=settings.state_dir, runtime_folder=settings.runtime_dir)


@contextmanager
def redis_errors(where: str = "Redis") -> Iterator[None]:
    """Turn the library's errors into RedisUnavailable."""
    try:
        yield
    except (AuthenticationError, NoPermissionError) as exc:
        raise RedisUnavailable(f"{where} refuses us ({exc}): check user, password and ACL of REDIS_URL") from exc
    except ResponseError as exc:
        raise RedisUnavailable(
            f"{where} refuses a command ({exc}): see its memory, and whether it is a replica"
        ) from exc
    except RedisError as exc:
        raise RedisUnavailable(
            f"{where} does not answer ({exc}): start it, or correct REDIS_URL, "
            "or leave REDIS_URL unset to use the embedded one"
        ) from exc


def shown(url: str) -> str:
    """A URL without its password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
