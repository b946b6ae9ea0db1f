"""The commands: what is refused before anything is sent, the exit codes, and the key.

Of many inputs one goes through a child process, the others through the same command in this one. RunPod is a socket
that nobody answers on, so whether anybody came is known for certain.
"""

import re
import socket

import pytest

from infra.cli import pods_app
from tests.in_process import call
from tests.infra.pod_commands import SCRIPT, make_environment, run_command

KEY, SECRET = "rpa_CANARY0123456789", "canary-of-env"
WITHOUT_OTHER_EXTRAS = """
import runpy, sys
sys.modules.update(dict.fromkeys(("torch", "boto3", "fastapi", "fcntl", "pwd", "resource", "termios")))
sys.argv[0] = "tools/runpod_api.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def nobody():
    """A loopback port that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture
def environment(nobody, tmp_path):
    url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    return make_environment(tmp_path, {"RUNPOD_API_KEY": KEY, "RUNPOD_API_URL": url})


@pytest.fixture
def run(environment):
    """The command; neither the key nor a value for the pod is in anything that it prints."""

    def run(*arguments, command=SCRIPT, **variables):
        return run_command(arguments, environment | variables, (KEY, SECRET), command)

    return run


@pytest.fixture
def ask(environment):
    """The same in this process."""

    def ask(*arguments, **variables):
        done = call(pods_app, *arguments, **(environment | {"COLUMNS": "200"} | variables))
        assert not any(secret in done.output for secret in (KEY, SECRET))
        return done

    return ask


def assert_nobody_came(nobody):
    with pytest.raises(BlockingIOError):
        nobody.accept()


@pytest.fixture
def files(tmp_path):
    """Names of files, which arguments may have in braces."""
    contents = {
        "private": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "empty": "",
        "null": "null\n",
        "with_key": f"TOKEN={KEY}\n",
        "ours": f"FLEET_TOKEN={SECRET}\n",
        "wrong": f"{SECRET}\n",
    }
    for name, text in contents.items():
        tmp_path.joinpath(name).write_text(text)
        tmp_path.joinpath(name).chmod(0o600)
    return {name: tmp_path / name for name in contents}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("create --yes --dry-run", "--yes and --dry-run exclude each other"),
        ("terminate pod1 --yes --dry-run", "--yes and --dry-run exclude each other"),
        ("create --yes --count 0", "--count"),
        ("create --yes --workspace-gb 5", "--workspace-gb"),
        ("create --yes --max-usd-per-hour 0", "H3_PODS_MAX_USD_PER_HOUR"),
        ("create --yes --max-usd-per-hour nan", "H3_PODS_MAX_USD_PER_HOUR"),
        ("create --yes --max-hours -1", "H3_PODS_MAX_HOURS"),
        ("create --yes --name Render_1", "--name 'Render_1'"),
        ("create --yes --volume-mount-path /x", "there is no --network-volume"),
        ("create --yes --network-volume vol1 --volume-mount-path x", "name an absolute folder"),
        ("create --yes --network-volume ../pods", "is no id of a volume"),
        ("create --yes --ssh-public-key {private}", "this is the private key"),
        ("create --yes --ssh-public-key {empty}", "the file is empty"),
        ("create --yes --ssh-public-key {null}", "line 1 is no public key"),
        ("create --yes --ssh-public-key nowhere.pub", "No such file"),
        ("create --yes --env-file {with_key}", "TOKEN holds the account's key"),
        ("create --yes --env-file {ours}", "FLEET_TOKEN is set by h3render"),
        ("create --yes --env-file {wrong}", "line 1 has a variable not as NAME=VALUE"),
        ("catalog --cloud ALL", "write SECURE or COMMUNITY"),
        ("get a/b", "'a/b' is no id of a pod"),
        ("terminate ../x --yes", "is no id of a pod"),
        ("wait pod1 --worker", "REDIS_URL is not set"),
        ("logs pod1 --source all", "write container or system"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_sent(ask, nobody, files, arguments, said):
    done = ask(*arguments.format(**files).split())
    assert done.exit_code == 2
    assert said in done.stderr
    assert_nobody_came(nobody)


def test_the_script_refuses_wrong_usage_and_tells_no_secret(run, nobody, files):
    done = run("create", "--yes", "--env-file", files["wrong"])
    assert done.returncode == 2
    assert "line 1 has a variable not as NAME=VALUE" in done.stderr
    assert_nobody_came(nobody)


@pytest.mark.parametrize("url", ["https://example.com", "http://api.runpod.io", f"https://api.runpod.io/?k={KEY}"])
def test_another_host_is_refused_before_it_is_called(ask, url):
    done = ask("list", RUNPOD_API_URL=url)
    assert (done.exit_code, done.stderr.startswith("RUNPOD_API_URL: ")) == (2, True)


@pytest.mark.parametrize("key", [None, "", f"{KEY} x", f"{KEY}\n"])
def test_a_key_that_is_missing_or_broken_exits_3_before_anything_is_sent(ask, nobody, key):
    for command in (["list"], ["catalog"], ["create", "--yes"], ["terminate", "pod1", "--yes"]):
        assert ask(*command, RUNPOD_API_KEY=key).exit_code == 3
    assert_nobody_came(nobody)


def test_the_script_exits_3_for_a_broken_key(run, nobody):
    assert run("create", "--yes", RUNPOD_API_KEY=f"{KEY} x").returncode == 3
    assert_nobody_came(nobody)


def test_no_variable_means_yes(ask, environment):
    """With nobody there, a create ends at its first read; but none of these makes it a wrong use of --dry-run."""
    environment["RUNPOD_API_URL"] = "http://127.0.0.1:1"
    done = ask("create", "--dry-run", H3_PODS_YES="1", H3_YES="1", YES="1", RUNPOD_API_YES="1")
    assert "exclude each other" not in done.stderr
    assert "GET /v2/catalog/gpus" in done.stderr


def test_neither_key_nor_values_are_in_a_list_of_processes(ask):
    """There is no flag to give them by."""
    text = "".join(ask(command, "--help").stdout for command in ("create", "terminate", "list"))
    assert "api-key" not in text
    assert {"--env-file", "--ssh-public-key"} <= set(re.findall(r"--[a-z-]+", text))


# --- the command, and the script


def test_the_command_says_what_the_script_says(run, nobody):
    arguments = ("create", "--yes", "--dry-run")
    by_command, by_script = run(*arguments, command=["-m", "h3render", "pods"]), run(*arguments)
    assert (by_command.returncode, by_command.stderr) == (by_script.returncode, by_script.stderr)
    assert by_command.returncode == 2
    assert_nobody_came(nobody)


def test_the_script_has_the_same_commands_and_needs_the_extra_alone(run):
    done = run("--help", command=["-c", WITHOUT_OTHER_EXTRAS])
    assert done.returncode == 0
    for command in ("catalog", "create", "get", "list", "terminate", "logs", "wait", "cost"):
        assert f" {command} " in done.stdout


def test_the_script_goes_as_far_as_a_request_without_what_windows_lacks(run):
    done = run("list", command=["-c", WITHOUT_OTHER_EXTRAS], RUNPOD_API_URL="http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("GET /v2/pods at 127.0.0.1: no connection")


def test_the_command_without_the_extra_tells_the_remedy(run):
    lacking = "import sys; sys.modules['httpx2'] = None; import h3render; h3render.main()"
    done = run("pods", "list", command=["-c", lacking])
    assert (done.returncode, done.stderr) == (2, "`h3render pods` needs httpx2: pip install 'h3render[infra]'\n")


def test_the_script_without_the_extra_tells_the_remedy(run):
    lacking = WITHOUT_OTHER_EXTRAS.replace('"torch"', '"httpx2"')
    done = run("list", command=["-c", lacking])
    assert (done.returncode, done.stderr) == (2, "runpod_api.py needs httpx2: pip install 'h3render[infra]'\n")
