"""The launch tools on the CPU: real commands, a toy checkpoint, one or two real ranks."""

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from h3 import machine
from h3.bench.nccl_log import find_transports, logging_nccl
from h3.conditioning import load_conditioning
from h3.errors import CheckpointError, ConfigError
from h3.latents_file import read_latents
from h3.sequence import Geometry
from tools import distributed_gates, distributed_t2va, ulysses_benchmark
from tools.launch.arguments import parse_world
from tools.launch.benchmark_file import VERSION, keep_run, put, read_results, read_runs
from tools.launch.text_states import find_text_files

pytestmark = pytest.mark.timeout(240)  # several commands, one after the other
on_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="these ranks run on the CPU")

REPOSITORY = Path(__file__).parents[2]
GEOMETRY = Geometry(96, 64, 39)
RUN = ("--shape", "96x64x39", "--steps", "2")
# Relative. Where sums are rounded once more, latents are off by 7e-4; swapped heads or a lost bias: by 9e-3 to 1.5e-2.
BF16 = 1.5e-3

NCCL_LOG = """\
pod:71:71 [0] NCCL INFO Channel 00/24 : 0 1
pod:71:92 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
pod:71:92 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
pod:71:95 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[1] via SHM/direct/direct
pod:72:96 [1] NCCL INFO Channel 02/0 : 1[1] -> 0[0] [send] via NET/Socket/0
pod:72:96 [1] NCCL INFO Channel 03/0 : 1[1] -> 0[0] via P2P/direct pointer
pod:72:96 [1] NCCL INFO Connected all rings
"""
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
*pci.bus_id*) echo 00000000:1B:00.0 ;;
"topo -m") printf '\\033[4mGPU0\\033[0m SYS\\n' ;;
"topo -p2p r") echo OK ;;
*) exit 1 ;;
esac
"""


def invoke(main, *arguments, code=0, **environment):
    """A tool in this process. Returns what it says: its results or, if it should fail, why."""
    app = typer.Typer()
    app.command()(main)
    unset = dict.fromkeys(name for name in os.environ if name.startswith("H3_"))
    done = CliRunner().invoke(app, list(map(str, arguments)), env={**unset, "COLUMNS": "200", **environment})
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else re.sub(r"[│\s]+", " ", done.stderr)


def script(name, *arguments, **environment):
    """The same as a process of its own, where no GPU is visible."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    return {
        "args": [f"tools/{name}", *arguments],
        "env": {**inherited, "CUDA_VISIBLE_DEVICES": "", **environment},
        "cwd": REPOSITORY,
        "text": True,
    }


def run_matrix(*arguments, **environment):
    command = script("run_distributed_matrix.sh", *arguments, **environment)
    return subprocess.run(**command, capture_output=True, check=False)


def denoise(*arguments, **options):
    return invoke(distributed_t2va.main, *arguments, **options)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    return tiny_checkpoint


@pytest.fixture(scope="module")
def matrix(checkpoint, tmp_path_factory):
    """Two ranks in each mode, a count that the toy's 9 heads are too few for, and one that is skipped."""
    out = tmp_path_factory.mktemp("matrix")
    keep_run(out / "benchmark.json", report_of() | {"width": 128})
    done = run_matrix(
        *RUN,
        "--out",
        str(out),
        H3_MODEL_PATH=str(checkpoint),
        H3_DISTRIBUTED_BENCHMARK=str(out / "benchmark.json"),
        H3_WORLD_SIZE="10",
        H3_GPU_COUNTS="2,10\n11",
    )
    return out, done


def latents_of(folder):
    return read_latents(folder / "latents.safetensors", GEOMETRY, 24, 32)


def relative_error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@on_the_cpu
class TestDenoising:
    def test_both_modes_at_two_ranks_agree_with_one_rank(self, matrix, checkpoint, tmp_path):
        out, _ = matrix
        said = denoise("ulysses", 1, *RUN, H3_MODEL_PATH=str(checkpoint), H3_DISTRIBUTED_OUTPUT=str(tmp_path))
        assert said == f"{tmp_path / 'ulysses-1-bf16-96x64x39' / 'report.json'}\n"
        alone = latents_of(tmp_path / "ulysses-1-bf16-96x64x39")
        for mode in ("ulysses", "tensor"):
            found = latents_of(out / f"{mode}-2-bf16-96x64x39")
            assert relative_error(found.video, alone.video) < BF16
            assert relative_error(found.audio, alone.audio) < BF16

    def test_a_prompt_is_encoded_and_shapes_follow_each_other_in_one_fleet(self, checkpoint, tmp_path):
        stale = tmp_path / "tensor-1-bf16-64x64x22" / "latents.safetensors"
        stale.parent.mkdir()
        stale.touch()
        environment = {
            "H3_MODEL_PATH": str(checkpoint / "FL2VA" / "transformer"),
            "H3_TEXT_ENCODER_PATH": str(checkpoint),
            "H3_DISTRIBUTED_OUTPUT": str(tmp_path),
            "H3_DISTRIBUTED_BENCHMARK": str(tmp_path / "runs" / "file.json"),
            "H3_SAVE_LATENTS": "0",
        }
        shapes = ("--shape", "64x64x22", "--shape", "64x32x22")
        said = denoise("tensor", 1, *shapes, "--steps", 1, "--prompt", "a red kite", **environment)
        reports = [json.loads(Path(line).read_text()) for line in said.splitlines()]
        assert [report["height"] for report in reports] == [64, 32]
        assert read_runs(tmp_path / "runs" / "file.json") == reports
        assert not list(tmp_path.rglob("latents.safetensors"))
        states = load_conditioning(Path(reports[0]["text_states"])).states
        assert len(states) < len("a red kite") + 1
        assert reports[0]["tokens"] == len(states) + 7 * 4 + 2 * 37

    def test_a_report_tells_the_transport_and_the_machine(self, matrix):
        out, _ = matrix
        report = json.loads((out / "tensor-2-bf16-96x64x39" / "report.json").read_text())
        assert [rank["sent_bytes"] > 0 for rank in report["transport"]["ranks"]] == [True, True]
        assert "random-text-300x64" in report["text_states"]
        assert {"date", "devices", "torch", "python", "command"} <= report["machine"].keys()
        assert report["machine"]["nccl_transport"] is None
        command = "python tools/distributed_t2va.py tensor 2 --shape 96x64x39 --steps 2 --out "
        assert report["machine"]["command"].startswith(command)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
class TestDenoisingOnGpus:
    def test_a_report_tells_how_the_gpus_are_connected(self, checkpoint, tmp_path, monkeypatch):
        for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
            monkeypatch.delenv(name, raising=False)
        said = denoise("ulysses", 2, *RUN, "--out", tmp_path, H3_MODEL_PATH=str(checkpoint))
        machine = json.loads(Path(said.strip()).read_text())["machine"]
        assert len(machine["devices"]) >= 2
        assert machine["cuda"]
        assert machine["nccl"]
        assert machine["nccl_transport"]


class TestMatrix:
    def test_it_goes_on_after_a_run_that_fails_and_names_it(self, matrix):
        _, done = matrix
        assert done.returncode == 1
        assert done.stderr.splitlines()[-2:] == ["failed: ulysses 10", "failed: tensor 10"]
        assert "9 attention heads cannot be split over 10 ranks" in done.stderr

    def test_counts_that_are_too_large_are_skipped(self, matrix):
        _, done = matrix
        assert "skipped: 11 ranks are more than 10 ranks on the CPU (H3_WORLD_SIZE)\n" in done.stderr

    def test_it_ends_with_its_own_runs_compared(self, matrix):
        out, done = matrix
        paths, comparison = done.stdout.splitlines()[:2], done.stdout.splitlines()[2:]
        assert paths == [str(out / f"{mode}-2-bf16-96x64x39" / "report.json") for mode in ("ulysses", "tensor")]
        assert "96x64, 39 frames" in comparison[0]
        assert "128x64" not in done.stdout
        kept = read_runs(out / "benchmark.json")
        assert [(run["width"], run["provenance"]["mode"]) for run in kept] == [
            (128, "tensor"),
            (96, "ulysses"),
            (96, "tensor"),
        ]

    @pytest.mark.parametrize(
        ("environment", "told"),
        [
            ({"H3_GPU_COUNTS": "1\ntwo"}, "H3_GPU_COUNTS: 'two' is no world size"),
            ({"H3_GPU_COUNTS": "0"}, "H3_GPU_COUNTS: '0' is no world size"),
            ({"H3_GPU_COUNTS": " "}, "nothing was left to run"),
            ({"H3_GPU_COUNTS": "3,4"}, "nothing was left to run"),
            ({"H3_DISTRIBUTED_MODES": "ulysses Tensor"}, "H3_DISTRIBUTED_MODES: 'Tensor' is no mode"),
            ({"H3_DISTRIBUTED_MODES": ","}, "nothing was left to run"),
            ({"H3_WORLD_SIZE": "abc"}, "H3_WORLD_SIZE: 'abc' is no world size"),
            ({"H3_WORLD_SIZE": "0"}, "H3_WORLD_SIZE: '0' is no world size"),
        ],
        ids=str,
    )
    def test_wrong_usage_is_told_before_anything_runs(self, environment, told):
        done = run_matrix(**environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr.splitlines()[-1]

    def test_an_interrupt_ends_it_and_not_only_the_run(self, checkpoint, tmp_path):
        command = script(
            "run_distributed_matrix.sh", "--steps", "1000", "--shape", "64x32x22", H3_MODEL_PATH=str(checkpoint)
        )
        command["env"] |= {"H3_GPU_COUNTS": "1", "H3_DISTRIBUTED_OUTPUT": str(tmp_path)}
        with subprocess.Popen(**command, stderr=subprocess.PIPE, start_new_session=True) as matrix:
            try:
                assert any("step 1/1000" in line for line in matrix.stderr)
                os.killpg(matrix.pid, signal.SIGINT)  # as a terminal sends it: to all of them
                assert not any("step 1/1000" in line or "failed:" in line for line in matrix.stderr)
                assert matrix.wait(timeout=30) == 130
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(matrix.pid, signal.SIGKILL)


class TestRefusing:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ((), "mode"),
            (("pipeline",), "'pipeline' is not one of 'ulysses', 'tensor'"),
            (("tensor", "two"), "'two' is no count of ranks"),
            (("tensor", "0"), "'0' is no count of ranks: take 1 "),
            (("tensor", "1", "hyper"), "'hyper' is not one of 'auto', 'sdpa', 'cudnn', 'flash', "),
            (("tensor", "--shape", "864x480"), "'864x480' is not WIDTHxHEIGHTxFRAMES, as in 864x480x141"),
            (("tensor", "--shape", "865x480x141"), "both sides must be multiples of 32"),
            (("tensor", "--shape", "864x480x140"), "140 frames: must be 17n + 5"),
            (("tensor", "--precision", "fp16"), "'fp32', 'bf16', 'nvfp4', 'fp8'"),
        ],
        ids=str,
    )
    def test_a_bad_argument_is_answered_with_the_usage(self, arguments, told):
        said = denoise(*arguments, code=2)
        assert "Usage:" in said
        assert told in said

    def test_a_world_size_of_the_environment_counts_where_none_is_given(self):
        said = denoise("tensor", code=2, H3_WORLD_SIZE="many")
        assert re.search(r"'many' is no count of ranks: take 1 .* H3_WORLD_SIZE", said)
        assert "gone" in denoise("tensor", 1, "--model", "gone", code=2, H3_WORLD_SIZE="many")

    def test_more_ranks_than_gpus(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert parse_world("2") == 2
        with pytest.raises(typer.BadParameter, match="'3' is no count of ranks: take 1 to 2, the visible GPUs"):
            parse_world("3")

    @on_the_cpu
    def test_random_weights_of_the_true_size_without_a_gpu(self):
        said = denoise("tensor", 1, code=2)
        assert "`h3render checkpoint tiny DIR` and set H3_MODEL_PATH=DIR" in said

    def test_a_prompt_without_a_text_encoder(self, checkpoint, tmp_path):
        said = denoise("tensor", 1, "--prompt", "x", "--out", tmp_path, code=2, H3_MODEL_PATH=str(checkpoint))
        assert "set H3_TEXT_ENCODER_PATH" in said

    @on_the_cpu
    @pytest.mark.parametrize(("argument", "environment"), [((10,), "2"), ((), "10")])
    def test_more_ranks_than_heads(self, checkpoint, tmp_path, argument, environment):
        options = {"H3_MODEL_PATH": str(checkpoint), "H3_WORLD_SIZE": environment}
        said = denoise("ulysses", *argument, "--out", tmp_path, code=2, **options)
        assert "9 attention heads cannot be split over 10 ranks" in said

    @on_the_cpu
    def test_an_attention_that_no_rank_could_run(self, checkpoint, tmp_path):
        said = denoise("tensor", 1, "fa3", "--out", tmp_path, code=2, H3_MODEL_PATH=str(checkpoint))
        assert "attention fa3 takes a CUDA GPU: ask for sdpa or auto" in said
        assert "attention sage takes a CUDA GPU" in invoke(ulysses_benchmark.main, 1, "sage", code=2)

    def test_a_benchmark_file_that_cannot_be_written(self, checkpoint, tmp_path):
        nowhere = ("--benchmark", "/proc/gone/file.json")  # where not even root makes a folder
        assert "/proc/gone" in denoise("ulysses", 1, "--out", tmp_path, *nowhere, code=2, H3_MODEL_PATH=str(checkpoint))
        assert "/proc/gone" in invoke(ulysses_benchmark.main, 1, *nowhere, code=2)
        assert not list(tmp_path.iterdir())

    def test_gates_on_fewer_gpus_than_ranks(self):
        said = invoke(distributed_gates.main, "--ranks", 99, code=2)
        assert said.startswith("--ranks 99: takes a GPU for each rank; torch sees ")

    def test_a_clone_in_which_nothing_is_installed(self, tmp_path):
        for folder, name, text in (
            ("tools", "python.sh", (REPOSITORY / "tools/python.sh").read_text()),
            ("bin", "python3", "#!/bin/sh\necho no module >&2\nexit 1\n"),
        ):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / name).write_text(text)
            (tmp_path / folder / name).chmod(0o755)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [tmp_path / "tools/python.sh", "x"], env={"PATH": path}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "run `make install` first" in done.stderr

    def test_a_benchmark_file_of_something_else_is_left_alone(self, tmp_path):
        path = tmp_path / "file.json"
        for tool, others, told in (
            (denoise, {"sequences": []}, "holds no runs"),
            (denoise, {"runs": [{"seed": 1}]}, "holds runs of another kind"),
            (
                lambda _, *rest, **options: invoke(ulysses_benchmark.main, *rest, **options),
                {"runs": []},
                "no sequences",
            ),
        ):
            path.write_text(json.dumps(others))
            assert told in tool("tensor", 1, "--benchmark", path, code=2)
            assert json.loads(path.read_text()) == others


def report_of(seed=1, **provenance):
    known = {"mode": "tensor", "world_size": 2, "precision": "bf16", "model_digest": "", "attention_backend": "sdpa"}
    measured = {"tokens": 502, "step_s": [1.0], "peak_bytes": [0, 0], "latents_sha256": {"video": ""}}
    provenance = {**known, "torch": "2.13", "device": "cpu", **provenance}
    return {**asdict(GEOMETRY), **measured, "steps": 1, "seed": seed, "provenance": provenance}


class TestBenchmarkFile:
    def test_a_run_takes_the_place_of_its_like_alone(self):
        others = [report_of(seed=2), report_of(mode="ulysses"), report_of(world_size=4), report_of(precision="nvfp4")]
        assert put([report_of(), *others], report_of() | {"load_s": 3}) == [*others, report_of() | {"load_s": 3}]

    def test_runs_are_kept_over_calls(self, tmp_path):
        path = tmp_path / "new" / "file.json"
        for seed in (1, 2, 1):
            keep_run(path, report_of(seed))
        assert json.loads(path.read_text()) == {"version": VERSION, "runs": [report_of(2), report_of(1)]}
        assert [left.name for left in path.parent.iterdir()] == ["file.json"]

    @pytest.mark.parametrize("text", ["{", "[]", '{"kind": "transport"}'])
    def test_a_file_of_something_else_is_refused(self, tmp_path, text):
        (tmp_path / "file.json").write_text(text)
        with pytest.raises(ConfigError, match="holds no runs"):
            read_runs(tmp_path / "file.json")


class TestNcclLog:
    def test_the_transports_of_all_channels_are_found(self):
        assert find_transports(NCCL_LOG) == ["NET/Socket/0", "P2P/CUMEM", "P2P/direct pointer", "SHM/direct/direct"]
        assert find_transports("") == []

    def test_what_ranks_log_is_read_and_the_environment_left_as_it_was(self, monkeypatch):
        for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
            monkeypatch.delenv(name, raising=False)
        with logging_nccl() as read_transports:
            assert os.environ["NCCL_DEBUG"] == "INFO"
            assert read_transports() is None
            Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", "71")).write_text(NCCL_LOG)
            assert "P2P/CUMEM" in read_transports()
        assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & os.environ.keys()

    def test_a_log_that_the_user_wants_is_left_alone(self, monkeypatch):
        monkeypatch.setenv("NCCL_DEBUG", "WARN")
        with logging_nccl() as read_transports:
            assert read_transports() is None
            assert "NCCL_DEBUG_FILE" not in os.environ
        assert os.environ["NCCL_DEBUG"] == "WARN"


class TestMachine:
    def test_how_gpus_are_connected_is_told_in_the_drivers_words(self, monkeypatch, tmp_path):
        driver = tmp_path / "nvidia-smi"
        driver.write_text(NVIDIA_SMI)
        driver.chmod(0o755)
        (tmp_path / "0000:1b:00.0").mkdir()
        (tmp_path / "0000:1b:00.0" / "numa_node").write_text("1\n")
        (tmp_path / "node1").mkdir()
        (tmp_path / "node1" / "cpulist").write_text("8-15\n")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        for name in ("NODES", "PCI_DEVICES"):
            monkeypatch.setattr(machine, name, tmp_path)
        assert machine.describe_links() == {
            "topology": "GPU0 SYS",
            "p2p_read": "OK",
            "p2p_write": None,
            "numa": {"nodes": {"node1": "8-15"}, "gpus": {"00000000:1B:00.0": 1}},
        }


class TestTextFiles:
    def test_the_tokenizer_lies_beside_the_encoder_or_at_the_model(self, checkpoint, tmp_path):
        inside = checkpoint / "FL2VA"
        assert find_text_files(checkpoint, None) == find_text_files(inside / "text_encoder", None)
        lone = tmp_path / "lone.safetensors"
        lone.touch()
        assert find_text_files(lone, checkpoint).tokenizer == inside / "tokenizer"
        with pytest.raises(CheckpointError, match=f"no tokenizer.json in {tmp_path / 'tokenizer'}, "):
            find_text_files(lone, None)
        with pytest.raises(CheckpointError, match="gone is missing"):
            find_text_files(tmp_path / "gone", checkpoint)


@on_the_cpu
class TestTransport:
    def test_each_exchange_is_timed_and_changes_no_bit(self, tmp_path):
        path = tmp_path / "transport.json"
        said = invoke(ulysses_benchmark.main, 2, "sdpa", "--shape", "64x32x22", H3_DISTRIBUTED_BENCHMARK=str(path))
        assert "scatter_heads" in said
        [sequence] = read_results(path, "sequences")
        rows = sequence["tokens"] // 2
        assert (sequence["tokens"], sequence["is_identity"]) == (300 + 7 * 2 + 2 * 37, True)
        assert sequence["attention_backend"] == "sdpa"
        sent = {name: timed["sent_bytes"] for name, timed in sequence["operations"].items()}
        assert sent == {
            "scatter_heads": [rows * 3 * 28 * 128 * 2] * 2,
            "attention": [0, 0],
            "gather_heads": [rows * 28 * 128 * 2] * 2,
            "gather_rows": [rows * 5376 * 2] * 2,
            "reduce_rows": [rows * 5376 * 2] * 2,
        }
        assert min(map(min, (timed["seconds"] for timed in sequence["operations"].values()))) > 0
        report = json.loads(path.read_text())
        assert (report["version"], report["kind"], report["world_size"]) == (VERSION, "transport", 2)
        assert report["machine"]["nccl_transport"] is None
