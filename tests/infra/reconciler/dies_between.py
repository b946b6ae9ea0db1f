"""Writes an order and dies as by kill -9: once it is in the copy, or once it is in Redis too."""

import os
import signal
import sys
from pathlib import Path

from redis import Redis

from infra.ledger import Ledger
from infra.reconciler.lease import ReconcilerLease
from infra.reconciler.shared_ledger import SharedLedger
from tests.infra.pods import make_row


class DyingCopy(Ledger):
    def append(self, row):
        super().append(row)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingLease(ReconcilerLease):
    def put(self, key, fields, drop=()):
        super().put(key, fields, drop)
        if key == self.keys.orders:
            os.kill(os.getpid(), signal.SIGKILL)


url, path, dies_in = sys.argv[1:]
redis = Redis.from_url(url)
lease = (DyingLease if dies_in == "redis" else ReconcilerLease)(redis, prefix="h3render", fleet="manual", holder="a")
lease.require()
ledger = SharedLedger(redis, lease, (DyingCopy if dies_in == "copy" else Ledger)(Path(path)))
ledger.open()
ledger.append(make_row())
