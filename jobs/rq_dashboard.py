"""For rq-dashboard: `rq-dashboard --json --config jobs.rq_dashboard`.

Its list of workers reads the job that each one runs by pickle, whatever --json says, and fails at a job in JSON. This
module is imported by the dashboard, not by h3render.
"""

import rq_dashboard.web
from redis import Redis
from rq import Worker
from rq.serializers import JSONSerializer
from rq.worker.base import BaseWorker


class JSONWorker(Worker):
    """RQ's view of a worker whose jobs are JSON."""

    @classmethod
    def all(cls, connection: Redis) -> list[BaseWorker]:  # type: ignore[override]  # all that the dashboard gives
        return Worker.all(connection=connection, serializer=JSONSerializer)


rq_dashboard.web.Worker = JSONWorker
