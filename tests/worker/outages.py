"""Every way in which a real Redis fails for a while, and how it is mended."""

from tests.waiting import eventually


def kill(server, redis):
    """What it has taken is on its disk: what an outage may lose is another matter, and up to `appendfsync`."""
    redis.waitaof(1, 0, 10_000)
    server.kill()


def break_disk(server, redis):
    """It cannot write its snapshot down, and so takes no more writes."""
    _snapshot(server).mkdir()
    redis.config_set("save", "1000 1000")
    redis.bgsave()
    eventually(lambda: redis.info("persistence")["rdb_last_bgsave_status"] != "ok")


def mend_disk(server, redis):
    _snapshot(server).rmdir()
    redis.bgsave()


def _snapshot(server):
    return server.socket.parent / "dump.rdb"


def lose_master(server, redis):
    redis.config_set("replica-serve-stale-data", "no")
    redis.replicaof("127.0.0.1", 1)


FAILURES = {
    "it stops": (lambda server, redis: server.stop(), lambda server, redis: server.start()),
    "it is killed": (kill, lambda server, redis: server.start()),
    "it hangs": (lambda server, redis: server.pause(), lambda server, redis: server.resume()),
    "its memory is full": (
        lambda server, redis: redis.config_set("maxmemory", 1),
        lambda server, redis: redis.config_set("maxmemory", 0),
    ),
    "its disk is full": (break_disk, mend_disk),
    "it is a replica": (
        lambda server, redis: redis.replicaof("127.0.0.1", 1),
        lambda server, redis: redis.replicaof("NO", "ONE"),
    ),
    "its master is gone": (lose_master, lambda server, redis: redis.replicaof("NO", "ONE")),
}
