"""`h3render report`: what it reads, compares, prints, draws and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import h3render
from h3.report import Line, Repeats, find_incomparable, find_repeats, group_by_shape, read_runs, trace_lines

SMALL = {"width": 864, "height": 480, "frames": 141, "tokens": 17_780}
LARGE = {"width": 1344, "height": 768, "frames": 141, "tokens": 42_620}
ON_TWO_GPUS = "864x480, 141 frames, 17,780 tokens, 4 steps, seed 440420, bf16 ulysses on 2 x NVIDIA H200"
REPOSITORY = Path(__file__).parents[2]


def make_run(gpus=1, step_s=8.0, **changed):
    """One run as `denoise` reports it. `changed` are fields of the run or of its provenance; None leaves one out."""
    provenance = {
        "model_digest": "5eed" * 16,
        "precision": "bf16",
        "mode": "ulysses",
        "world_size": gpus,
        "attention_backend": "sdpa",
        "torch": "2.13.0",
        "device": "NVIDIA H200",
        "text_device": "file",
    }
    run = {
        "version": 2,
        "model": "/models/MiniMax-H3",
        "text_states": "states.safetensors",
        "noise": None,
        **SMALL,
        "steps": 4,
        "seed": 440420,
        "provenance": provenance | {name: value for name, value in changed.items() if name in provenance},
        "load_s": 4.2,
        "step_s": step_s if isinstance(step_s, list) else [2 * step_s, 0.5 * step_s, step_s, 1.5 * step_s],
        "peak_bytes": [30 * 2**30 // gpus] * gpus,
        "weight_bytes": [10 * 2**30] * gpus,
        "transport": {"step_s": 10.0, "ranks": [{"seconds": 0.5 + rank, "sent_bytes": 10**9} for rank in range(gpus)]},
        "latents_sha256": {"video": "a" * 64, "audio": "b" * 64},
        "machine": {"nccl_transport": ["P2P/CUMEM"], "driver": "580.1"},
    } | {name: value for name, value in changed.items() if name not in provenance}
    return {name: value for name, value in run.items() if value is not None or name == "noise"}


def without(run, name):
    """The same without a field, of the run or of its provenance."""
    owner, _, field = name.rpartition(".")
    part = run[owner] if owner else run
    del part[field]
    return run


@pytest.fixture
def write(tmp_path):
    """Writes one run, or several as a file of runs."""

    def write(*runs, name="runs.json"):
        path = tmp_path / name
        path.write_text(json.dumps(runs[0] if len(runs) == 1 else {"version": 1, "runs": runs}))
        return path

    return write


@pytest.fixture
def read(write):
    """Runs as they come out of a file."""
    return lambda *runs: read_runs([write(*runs)])


@pytest.fixture
def report(write):
    """The command in this process; its lines on stdout."""

    def report(*runs, flags=()):
        return invoke(write(*runs), *flags).splitlines()

    return report


def invoke(*arguments, code=0):
    done = CliRunner().invoke(h3render.app, ["report", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout if code == 0 else done.stderr


def cells(lines):
    """Rows of all tables, by heading."""
    rows = []
    for line in lines:
        words = [word.strip() for word in line.split("  ") if word.strip()]
        if words[:1] == ["GPUs"]:
            headings = words
        elif len(words) > 2 and words[0].isdigit():
            rows.append(dict(zip(headings, words, strict=True)))
    return rows


class TestTable:
    def test_a_row_tells_all_of_a_run(self, report):
        lines = report(make_run(), make_run(2, step_s=5.0))
        assert lines[0].rstrip() == "864x480, 141 frames, 17,780 tokens"
        assert cells(lines)[1] == {
            "GPUs": "2",
            "mode": "ulysses",
            "precision": "bf16",
            "attention": "sdpa",
            "steps": "4",
            "step": "5.000 s",  # the median of all but the first
            "speed-up": "1.60x",
            "efficiency": "80.0%",
            "transport": "15.0%",  # of the rank that spent more
            "sent": "1.00 GB",
            "peak": "15.00 GiB",
            "weights": "10.00 GiB",
            "device": "NVIDIA H200",
            "NCCL": "P2P/CUMEM",
        }

    def test_it_is_neither_cut_nor_folded_when_piped(self, report):
        device = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, of which this is an engineering sample"
        lines = report(make_run(2, device=device))
        [row] = cells(lines)
        assert (row["device"], row["NCCL"]) == (device, "P2P/CUMEM")
        assert not any("\x1b" in line for line in lines)

    def test_each_shape_has_a_table_sorted_by_precision_mode_and_gpus(self, report):
        lines = report(
            make_run(**LARGE),
            make_run(precision="nvfp4"),
            make_run(8),
            make_run(2),
            make_run(2, mode="tensor"),
        )
        titles = [line.rstrip() for line in lines if line.rstrip().endswith("tokens")]
        assert titles == ["864x480, 141 frames, 17,780 tokens", "1344x768, 141 frames, 42,620 tokens"]
        assert [(row["precision"], row["mode"], row["GPUs"]) for row in cells(lines)] == [
            ("bf16", "tensor", "2"),
            ("bf16", "ulysses", "2"),
            ("bf16", "ulysses", "8"),
            ("nvfp4", "ulysses", "1"),
            ("bf16", "ulysses", "1"),
        ]

    def test_a_one_gpu_run_of_either_mode_is_the_baseline(self, report):
        rows = cells(report(make_run(), make_run(2, step_s=5.0, mode="tensor")))
        assert [row["speed-up"] for row in rows] == ["1.60x", "1.00x"]

    @pytest.mark.parametrize("other", [LARGE, {"precision": "nvfp4"}, {"device": "NVIDIA B200"}], ids=str)
    def test_a_one_gpu_run_of_something_else_is_none(self, report, other):
        rows = cells(report(make_run(**other), make_run(2)))
        [row] = [row for row in rows if row["GPUs"] == "2"]
        assert (row["speed-up"], row["efficiency"]) == ("-", "-")

    def test_several_one_gpu_runs_count_with_their_median(self, report):
        rows = cells(report(*(make_run(step_s=step_s) for step_s in (8.0, 9.0, 40.0)), make_run(2, step_s=4.5)))
        assert [row["speed-up"] for row in rows if row["GPUs"] == "2"] == ["2.00x"]

    def test_the_only_step_is_taken_as_it_is(self, report):
        assert cells(report(make_run(step_s=[3.25])))[0]["step"] == "3.250 s"

    def test_what_an_older_report_lacks_is_a_dash(self, report):
        old = make_run(2, version=1, weight_bytes=None, transport=None, machine=None, peak_bytes=[0, 0])
        [row] = cells(report(old))
        assert [row[name] for name in ("transport", "sent", "peak", "weights", "NCCL")] == ["-"] * 5

    def test_all_files_are_read_and_a_run_in_two_of_them_once(self, write):
        several = write(make_run(), make_run(2))
        again, another = write(make_run(), name="again.json"), write(make_run(4), name="another.json")
        lines = invoke(several, again, another).splitlines()
        assert [row["GPUs"] for row in cells(lines)] == ["1", "2", "4"]
        assert not any("reproduced" in line for line in lines)


class TestSentences:
    def test_runs_that_do_not_compare_are_told(self, report):
        lines = report(make_run(), make_run(2, device="NVIDIA B200", torch="2.14.0"))
        assert [line for line in lines if line.startswith("careful")] == [
            "careful: the runs are of different devices (NVIDIA B200, NVIDIA H200), so their times do not compare",
            "careful: the runs are of different torch versions (2.13.0, 2.14.0), so their times do not compare",
        ]

    def test_models_differ_only_within_a_precision(self, read):
        runs = read(make_run(), make_run(2), make_run(precision="nvfp4", model_digest="cafe" * 16))
        assert find_incomparable(runs) == {}
        runs = read(make_run(), make_run(2, model_digest="cafe" * 16))
        assert find_incomparable(runs) == {"bf16 models": ["5eed5eed5eed", "cafecafecafe"]}

    def test_equal_latents_are_reproduced(self, report):
        lines = report(make_run(2), make_run(2, step_s=8.1), make_run(2, step_s=8.2), make_run())
        assert lines[-1] == f"reproduced: {ON_TWO_GPUS}: 3 runs with equal latents"

    def test_different_latents_are_not_and_what_may_explain_them_is_told(self, report):
        other = make_run(2, latents_sha256={"video": "a" * 64, "audio": "c" * 64}, torch="2.14.0", text_states="x")
        lines = report(make_run(2), make_run(2, step_s=8.1), other)
        assert lines[-1] == (
            f"not reproduced: {ON_TWO_GPUS}: 3 runs with 2 different latents; "
            "different, too: torch (2.13.0, 2.14.0); text states (states.safetensors, x)"
        )

    @pytest.mark.parametrize(
        "other",
        [
            LARGE,
            {"seed": 1},
            {"steps": 5},
            {"precision": "fp8"},
            {"mode": "tensor"},
            {"gpus": 4},
            {"model_digest": "cafe" * 16},
            {"device": "NVIDIA B200"},
        ],
        ids=str,
    )
    def test_runs_that_differ_need_no_equal_latents(self, read, other):
        assert find_repeats(read(make_run(2), make_run(**{"gpus": 2, **other}))) == []

    def test_repeats_count_their_latents(self, read):
        [repeats] = find_repeats(read(make_run(2), make_run(2, step_s=9.0)))
        assert isinstance(repeats, Repeats)
        assert (repeats.latents, repeats.differences) == (1, {})


class TestRefusing:
    @pytest.mark.parametrize(
        ("field", "value", "told"),
        [
            ("width", None, "width is missing"),
            ("step_s", [], "step_s [] should have at least 1 item"),
            ("step_s", [1.0, -2.0], "step_s.1 -2.0 should be greater than or equal to 0.000000001"),
            ("step_s", [1.0, float("nan")], "step_s.1 nan should be"),
            ("tokens", "many", "tokens 'many' should be a valid integer"),
            ("frames", 141.5, "frames 141.5 should be a valid integer"),
            ("world_size", "2", "provenance.world_size '2' should be a valid integer"),
            ("provenance", [], "provenance [] should be an object"),
            ("peak_bytes", [], "peak_bytes [] should have at least 1 item"),
            ("latents_sha256", {}, "latents_sha256 {} should have at least 1 item"),
            ("transport", {"step_s": 0, "ranks": []}, "transport.step_s 0"),
        ],
        ids=str,
    )
    def test_a_wrong_field_is_told_with_file_value_and_remedy(self, write, field, value, told):
        path = write(make_run(**{field: value}))
        said = invoke(path, code=2)
        assert said.startswith(f"{path} is no report of a denoise run: ")
        assert told in said
        assert "report.json as `h3render denoise` writes it" in said
        assert said.count("\n") == 1

    def test_of_several_runs_the_wrong_one_is_told(self, write):
        said = invoke(write(make_run(), without(make_run(2), "provenance.torch")), code=2)
        assert "runs.1.provenance.torch is missing" in said

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"", "is not JSON"),
            (b"{", "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b"[" * 100_000, "is not JSON"),
            (b"[]", "is no report of a denoise run: [] should be an object"),
            (b'"runs"', "is no report of a denoise run: 'runs' should be an object"),
            (b'{"version": 1, "runs": []}', "runs [] should have at least 1 item"),
            (b'{"version": 1, "runs": {}}', "runs {} should be"),
        ],
        ids=lambda content: content[:30] if isinstance(content, bytes) else "",
    )
    def test_what_is_no_report_is_told_in_a_line(self, tmp_path, content, told):
        path = tmp_path / "other.json"
        path.write_bytes(content)
        said = invoke(path, code=2)
        assert said.startswith(f"{path} ")
        assert told in said
        assert said.count("\n") == 1

    def test_a_file_that_cannot_be_read_is_told(self, tmp_path):
        gone = tmp_path / "gone.json"
        assert invoke(gone, code=2).startswith(f"{gone} cannot be read (No such file or directory): give ")
        assert invoke(tmp_path, code=2).startswith(f"{tmp_path} cannot be read (Is a directory): give ")

    def test_fields_of_a_later_version_do_no_harm(self, report):
        assert cells(report(make_run(version=3, weather="fine")))[0]["GPUs"] == "1"


class TestLines:
    def test_a_line_begins_with_the_one_gpu_run_that_modes_share(self, read):
        lines = trace_lines(read(make_run(), make_run(2, step_s=5.0), make_run(4, step_s=4.0, mode="tensor")))
        assert {line.mode: line.speed_ups for line in lines} == {
            "tensor": {1: 1.0, 4: 2.0},
            "ulysses": {1: 1.0, 2: 1.6},
        }

    def test_without_one_it_is_ideal_at_its_fewest_gpus(self, read):
        [line] = trace_lines(read(make_run(8, step_s=2.0), make_run(2, step_s=6.0), make_run(2, step_s=6.0, seed=1)))
        assert isinstance(line, Line)
        assert (line.speed_ups, line.ideal_at) == ({2: 2.0, 8: 6.0}, 2)

    def test_one_gpu_alone_is_no_line(self, read):
        assert trace_lines(read(make_run())) == []

    def test_shapes_come_in_order_of_their_tokens(self, read):
        assert [shape.tokens for shape in group_by_shape(read(make_run(**LARGE), make_run()))] == [17_780, 42_620]


def colors(path):
    """How many pixels have each color."""
    with Image.open(path) as picture:
        rgb = picture.convert("RGB")
    return {color: count for count, color in rgb.getcolors(rgb.width * rgb.height)}


BLUE, VERMILION = (0, 0x72, 0xB2), (0xD5, 0x5E, 0)


class TestPlot:
    @pytest.mark.parametrize(("shapes", "panels"), [(1, (1, 1)), (3, (3, 1)), (4, (2, 2))])
    def test_each_shape_has_a_panel(self, report, tmp_path, shapes, panels):
        sizes = [{**SMALL, "tokens": 1000 * (n + 1)} for n in range(shapes)]
        runs = [make_run(gpus, step_s=8 / gpus**0.9, **size) for size in sizes for gpus in (1, 2, 4)]
        plot = tmp_path / "scaling.png"
        assert report(*runs, flags=("--plot", plot))[-1] == str(plot)
        with Image.open(plot) as picture:
            assert picture.format == "PNG"
            assert picture.size == (750 * panels[0], 690 * panels[1])

    def test_names_with_dollars_are_shown_as_they_are(self, report, tmp_path):
        runs = [make_run(gpus, step_s=8 / gpus, device="$x^ and $", mode="$y_") for gpus in (1, 2)]
        report(*runs, flags=("--plot", tmp_path / "scaling.png"))

    def test_each_line_is_drawn_in_a_color_of_its_own(self, report, tmp_path):
        plots = [tmp_path / "one.png", tmp_path / "two.png"]
        ulysses = [make_run(gpus, step_s=8 / gpus**0.9) for gpus in (1, 2, 4, 6, 8)]
        tensor = [make_run(gpus, step_s=8 / gpus**0.7, precision="fp8", mode="tensor") for gpus in (2, 4)]
        report(*ulysses, flags=("--plot", plots[0]))
        report(*ulysses, *tensor, flags=("--plot", plots[1]))
        one, two = map(colors, plots)
        # A line from corner to corner is some 500 pixels long and 4 wide.
        assert one[BLUE] > 2000
        assert one.get(VERMILION, 0) == 0
        assert two[BLUE] > 2000
        assert two[VERMILION] > 500

    def test_more_gpus_that_are_slower_are_drawn_below_one(self, report, tmp_path):
        plot = tmp_path / "scaling.png"
        report(make_run(), make_run(2, step_s=20.0), flags=("--plot", plot))
        assert colors(plot)[BLUE] > 1000

    @pytest.mark.parametrize(
        ("place", "told"),
        [
            ("scaling.jpg", "is no name of a PNG: let it end with .png"),
            ("gone/x.png", "gone is no folder: make it first"),
        ],
    )
    def test_a_place_that_cannot_be_is_refused(self, write, tmp_path, place, told):
        assert told in invoke(write(make_run(2)), "--plot", tmp_path / place, code=2)

    def test_nothing_to_draw_is_told(self, write, tmp_path):
        assert "no run is on more than one GPU" in invoke(write(make_run()), "--plot", tmp_path / "x.png", code=2)
        assert not (tmp_path / "x.png").exists()


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("torch", "numpy", "matplotlib")))  # importing any of them raises ModuleNotFoundError
import h3render
h3render.app(sys.argv[1:3], standalone_mode=False)
h3render.main()
"""


def test_matplotlib_is_needed_for_a_plot_alone_and_its_extra_is_named(write, tmp_path):
    path = write(make_run(2))
    command = [sys.executable, "-c", WITHOUT, "report", path, "--plot", tmp_path / "x.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)
    assert done.returncode == 2
    assert done.stdout == invoke(path)  # of the call without --plot
    assert done.stderr.startswith("`h3render report` needs matplotlib")
    assert done.stderr.endswith("pip install 'h3render[report]'\n")
