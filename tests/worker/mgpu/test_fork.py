"""A controller in a process that forks, as pre-fork web servers do."""

from __future__ import annotations

import subprocess

from tests.worker.mgpu.conftest import assert_gone
from tests.worker.mgpu.scripts import RunScript, read_pids


def test_a_fork_of_the_controller_is_told_whose_it_is(run_script: RunScript) -> None:
    """89: every method refuses there, and its exit leaves the fleet alone."""
    script = run_script(
        """
def refused(call):
    try:
        call()
    except RuntimeError as error:
        return f"belongs to process {os.getppid()}" in str(error)

if __name__ == "__main__":
    controller = fleet(num_gpus=1)
    stream = controller.stream(command="count", upto=3)
    child = os.fork()
    if child == 0:
        calls = [
            controller.start, controller.stream, controller.shutdown, controller.status,
            lambda: controller.is_alive, lambda: controller.reclaim(1), lambda: next(stream), stream.drain,
            stream.request_stop, lambda: stream.transfer(threading.current_thread()),
        ]
        print("in the fork", all(refused(call) for call in calls), flush=True)
        sys.exit(0)
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print("items", len(list(stream)), len(list(controller.stream(command="count", upto=2))), flush=True)
    controller.shutdown()
"""
    )
    pids = read_pids(script)
    output, errors = script.communicate(timeout=60)
    assert output.splitlines() == ["in the fork True", "exit code 0", "items 3 2"], errors
    assert script.returncode == 0, errors
    assert "Error" not in errors
    assert_gone(pids, within_s=0)


def test_a_fork_that_lives_on_does_not_keep_orphans_alive(run_script: RunScript) -> None:
    """89, 85: it holds copies of every descriptor, so only the kernel's signal tells that the controller is dead."""
    script = run_script(
        """
if __name__ == "__main__":
    stream = fleet().stream(command="hang")
    next(stream), next(stream)
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    next(stream)
"""
    )
    pids = read_pids(script)
    (fork,) = read_pids(script)
    script.kill()
    try:
        assert_gone(pids, within_s=2)
    finally:
        subprocess.run(["kill", "-9", str(fork)], check=True)
