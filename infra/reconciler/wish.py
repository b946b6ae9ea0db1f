"""That a person wants no pod any more, told to whichever reconciler acts. To say so, no lease is needed."""

from redis import Redis

WISH_KEY = "h3:pods:{fleet}:down"  # exists while it is so


class DownWish:
    """Of one fleet of pods. Everything raises RedisError."""

    def __init__(self, redis: Redis, *, prefix: str, fleet: str) -> None:
        self._redis, self._key = redis, WISH_KEY.format(fleet=f"{prefix}-{fleet}")

    def make(self) -> None:
        self._redis.set(self._key, "1")

    def is_made(self) -> bool:
        return bool(self._redis.exists(self._key))

    def take_back(self) -> None:
        self._redis.delete(self._key)
