import json
import subprocess
import sys

PROGRAM = """
import logging, structlog
from worker.logs import configure_logs
from worker.settings import LogFormat
configure_logs(LogFormat.JSON)
with structlog.contextvars.bound_contextvars(job_id="j1"):
    try:
        raise KeyError("boom")
    except KeyError:
        structlog.get_logger().exception("attempt broken", step=3)
    logging.getLogger("rq.worker").warning("from a library")
"""


def test_a_line_of_json_keeps_fields_tracebacks_and_what_libraries_say():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True)
    ours, theirs = (json.loads(line) for line in done.stderr.splitlines())
    assert (ours["event"], ours["step"], ours["job_id"], ours["level"]) == ("attempt broken", 3, "j1", "error")
    assert "KeyError: 'boom'" in ours["exception"]
    assert (theirs["event"], theirs["job_id"]) == ("from a library", "j1")
