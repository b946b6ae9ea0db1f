"""Conversions between the formats: what each keeps, what is refused, and how one that was stopped goes on."""

import json
import os
import signal
import subprocess
import sys
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

from h3.checkpoint import DenoiserFiles, load_denoiser
from h3.convert import Conversion, Target, convert, fit_curve, save_denoiser, save_untrained
from h3.errors import CheckpointError
from h3.model import TimeEmbedder, interpolate
from h3.nvfp4 import dequantise, quantise
from h3.precision import Precision
from h3.tensor_file import TensorReader, TensorWriter, find_tensors
from h3.untrained import H3, Untrained, with_curve
from tests.h3.checkpoint_files import (
    LINEARS,
    QKV,
    SMALL,
    SMALL_PRUNED,
    comfy_tensors,
    official_config,
    quantise_layers,
    write_comfy,
)
from tests.h3.random_models import MEDIUM, random_denoiser
from tests.h3.test_exact import ONE_STEP, errors, make_request
from tests.servers import DIES_WITH_PARENT
from tests.waiting import eventually

CPU = torch.device("cpu")
FOLDERS = [Target.OFFICIAL, Target.DIFFUSERS]
FILES = [Target.COMFY_PRUNED, Target.COMFY_NVFP4]
MANY = 7  # blocks, of a model that is many times larger than its largest tensor


def tensors_of(path):
    if path.is_file():
        return load_file(path)
    return {name: tensor for shard in sorted(path.glob("*.safetensors")) for name, tensor in load_file(shard).items()}


def assert_same_bytes(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), name


def is_packed(name):
    return name.startswith("blocks.") and name.removesuffix(".weight").endswith(LINEARS)


def rounded(name, tensor):
    """What NVFP4 makes of it, where it holds it."""
    return dequantise(quantise(tensor), torch.bfloat16) if is_packed(name) else tensor


@pytest.fixture(scope="module")
def sources(small, tmp_path_factory):
    """By name: a file or folder, and the weights that it stands for."""
    folder = tmp_path_factory.mktemp("sources")
    mixed, markers, stands_for = quantise_layers(
        comfy_tensors(small.pruned), {QKV: "nvfp4", "blocks.1.mlp.fc2": "int8_tensorwise", "blocks.0.mlp.fc1": "nvfp4"}
    )
    plain, pruned = small.model.state_dict(), small.pruned.state_dict()
    return {
        "official": (small.paths[Target.OFFICIAL], plain),
        "diffusers": (small.paths[Target.DIFFUSERS], plain),
        "one file": (write_comfy(folder / "plain.safetensors", comfy_tensors(small.model)), plain),
        "comfy-pruned": (small.paths[Target.COMFY_PRUNED], pruned),
        "comfy-nvfp4": (small.paths[Target.COMFY_NVFP4], {n: rounded(n, tensor) for n, tensor in pruned.items()}),
        "mixed": (
            write_comfy(folder / "mixed.safetensors", mixed, markers),
            {name: stands_for.get(name, tensor).to(tensor.dtype) for name, tensor in pruned.items()},
        ),
    }


WHOLE, PRUNED = ["official", "diffusers", "one file"], ["comfy-pruned", "comfy-nvfp4", "mixed"]


class TestWeights:
    @pytest.mark.parametrize(("source", "target"), [*product(WHOLE, FOLDERS)])
    def test_a_whole_model_becomes_any_folder_bit_for_bit(self, sources, tmp_path, source, target):
        path, weights = sources[source]
        convert(path, tmp_path / "x", target)
        assert_same_bytes(load_denoiser(tmp_path / "x", CPU).state_dict(), weights)

    @pytest.mark.parametrize(("source", "target"), [*product(WHOLE, FILES)])
    def test_a_whole_model_becomes_any_file_and_keeps_all_but_its_time_path(self, sources, tmp_path, source, target):
        path, weights = sources[source]
        convert(path, tmp_path / "x.safetensors", target)
        loaded = load_denoiser(tmp_path / "x.safetensors", CPU, Precision.BF16)
        assert loaded.config.is_pruned
        for name, tensor in loaded.state_dict().items():
            if "adaln" not in name:
                expected = rounded(name, weights[name]) if target is Target.COMFY_NVFP4 else weights[name]
                assert torch.equal(tensor, expected), name

    @pytest.mark.parametrize("source", PRUNED)
    def test_a_pruned_model_becomes_a_plain_file_bit_for_bit(self, sources, tmp_path, source):
        path, weights = sources[source]
        convert(path, tmp_path / "x.safetensors", Target.COMFY_PRUNED)
        assert_same_bytes(load_denoiser(tmp_path / "x.safetensors", CPU).state_dict(), weights)

    @pytest.mark.parametrize("source", PRUNED)
    def test_a_pruned_model_becomes_nvfp4_where_it_is_not_so_already(self, sources, tmp_path, source):
        path, weights = sources[source]
        already = {layer for layer, marker in DenoiserFiles.open(path).markers.items() if marker.format == "nvfp4"}
        convert(path, tmp_path / "x.safetensors", Target.COMFY_NVFP4)
        loaded = load_denoiser(tmp_path / "x.safetensors", CPU, Precision.BF16).state_dict()
        for name, tensor in weights.items():
            expected = tensor if name.removesuffix(".weight") in already else rounded(name, tensor)
            assert torch.equal(loaded[name], expected), name

    @pytest.mark.parametrize(("source", "target"), [*product(PRUNED, FOLDERS)])
    def test_a_pruned_model_cannot_become_whole_again(self, sources, tmp_path, source, target):
        with pytest.raises(CheckpointError, match=f"a pruned checkpoint cannot become {target}: its time embedding is"):
            convert(sources[source][0], tmp_path / "x", target)
        assert not any(tmp_path.iterdir())

    @pytest.mark.parametrize("there", FOLDERS)
    def test_there_and_back_gives_the_same_bytes(self, medium, tmp_path, there):
        back = next(target for target in FOLDERS if target is not there)
        convert(medium.paths[back], tmp_path / "there", there)
        convert(tmp_path / "there", tmp_path / "back", back)
        assert_same_bytes(tensors_of(tmp_path / "there"), tensors_of(medium.paths[there]))
        assert_same_bytes(tensors_of(tmp_path / "back"), tensors_of(medium.paths[back]))

    def test_packed_bytes_are_kept(self, medium, tmp_path):
        path = medium.paths[Target.COMFY_NVFP4]
        convert(path, tmp_path / "x.safetensors", Target.COMFY_NVFP4)
        assert_same_bytes(tensors_of(tmp_path / "x.safetensors"), tensors_of(path))

    def test_a_layer_that_wants_full_precision_keeps_its_marker(self, small, tmp_path):
        tensors, markers, _ = quantise_layers(comfy_tensors(small.pruned), {QKV: "nvfp4"})
        markers[QKV]["full_precision_matrix_mult"] = True
        convert(write_comfy(tmp_path / "a", tensors, markers), tmp_path / "b", Target.COMFY_NVFP4)
        stored = tensors_of(tmp_path / "b")
        assert json.loads(bytes(stored[f"{QKV}.comfy_quant"].tolist())) == markers[QKV]
        assert stored["blocks.1.mlp.fc1.comfy_quant"].tolist() == list(b'{"format": "nvfp4"}')

    def test_one_conversion_gives_one_sequence_of_bytes(self, small, tmp_path):
        for name in "ab":
            convert(small.paths[Target.OFFICIAL], tmp_path / name, Target.COMFY_NVFP4)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_config_json_has_the_names_of_both_implementations(self, small):
        official = json.loads((small.paths[Target.OFFICIAL] / "config.json").read_text())
        assert official.items() >= official_config(SMALL).items()
        diffusers = json.loads((small.paths[Target.DIFFUSERS] / "config.json").read_text())
        assert diffusers["_class_name"] == "MiniMaxH3Transformer3DModel"
        assert diffusers.items() >= SMALL.model_dump(mode="json", exclude={"curve_points"}).items()


class TestPruning:
    def test_the_velocity_stays(self, medium, tmp_path, caplog, record_property):
        with caplog.at_level("INFO"):
            convert(medium.paths[Target.OFFICIAL], tmp_path / "x", Target.COMFY_PRUNED)
        record_property("curve", caplog.messages)
        assert "pruned: a curve of width 8 keeps the time embedding to" in caplog.text
        request = make_request(MEDIUM, "both")  # its clocks are three times of a step, one of them constant
        with torch.inference_mode():
            pruned, whole = load_denoiser(tmp_path / "x", CPU), medium.model
            found = [errors(request.velocity(pruned, step), request.velocity(whole, step)) for step in (0, 6, 11)]
        record_property("velocity", found)
        assert max(max(error) for error in found) <= ONE_STEP[torch.bfloat16]

    def test_the_curve_is_the_activated_embedding(self, record_property):
        torch.manual_seed(0)
        embedder = TimeEmbedder(MEDIUM).double()
        curve = fit_curve(embedder, MEDIUM.time_embed_dim)
        record_property("error", curve.error)
        assert curve.error < 1e-5
        between = torch.rand(50, dtype=torch.float64)
        expected = F.silu(embedder(between)).detach().float()
        found = interpolate(curve.table, between.float()) @ curve.basis + curve.mean
        assert (found - expected).norm() / expected.norm() < 1e-5

    def test_what_fp16_cannot_hold_is_refused(self, tmp_path):
        model = random_denoiser(SMALL)
        model.blocks[1].adaln_proj.linear.bias.data[7] = 1e5
        with pytest.raises(
            CheckpointError,
            match=r"blocks.1.adaln_proj.linear.bias has magnitudes up to 9\.9\de\+04, which fp16 cannot",
        ):
            save_denoiser(model, tmp_path / "x", Target.COMFY_PRUNED)
        assert not (tmp_path / "x").exists()

    def test_a_narrow_embedding_has_a_narrower_curve(self, tmp_path):
        config = SMALL.model_copy(update={"time_embed_dim": 4})
        save_denoiser(random_denoiser(config), tmp_path / "x", Target.COMFY_PRUNED)
        assert load_denoiser(tmp_path / "x", CPU).config.time_embed_dim == 4


class TestPublishedSizes:
    def forms(self, config, target):
        units = Conversion(config, None, {}, None)._units(target)
        return {name: form for unit in units for name, form in unit.forms.items()}

    def test_the_official_model_has_535_tensors(self):
        forms = self.forms(H3, Target.OFFICIAL)
        assert len(forms) == 535
        assert sum(form.size_bytes for form in forms.values()) == 66_280_430_144

    def test_a_pruned_file_has_532_tensors_and_13_billion_parameters_less(self):
        forms, whole = self.forms(with_curve(H3), Target.COMFY_PRUNED), self.forms(H3, Target.OFFICIAL)
        assert len(forms) == 532
        count = [sum(form.size_bytes // form.dtype.itemsize for form in all_.values()) for all_ in (whole, forms)]
        assert count[0] - count[1] == pytest.approx(13.0e9, rel=0.01)
        assert str(forms["adaln_t_table"]) == "[1025, 8] float32"
        assert str(forms["blocks.49.adaln_proj.linear.weight"]) == "[96768, 8] float16"

    def test_an_nvfp4_file_has_1132_tensors_and_the_published_bytes_of_each_layer(self):
        forms = self.forms(with_curve(H3), Target.COMFY_NVFP4)
        assert len(forms) == 1132
        payload = sum(form.size_bytes for form in forms.values())
        # The published file ends at byte 12,528,636,800; its header lies before that: some hundred bytes a tensor.
        assert 80 * len(forms) < 12_528_636_800 - payload < 120 * len(forms)
        sizes = [
            (forms[f"blocks.0.{linear}.weight"].size_bytes, forms[f"blocks.0.{linear}.weight_scale"].size_bytes)
            for linear in LINEARS
        ]
        assert sizes == [
            (57_802_752, 7_225_344),
            (19_267_584, 2_408_448),
            (77_070_336, 9_633_792),
            (38_535_168, 4_816_896),
        ]
        assert forms["blocks.0.attn.qkv_proj.comfy_quant"].size_bytes == 19

    def test_a_file_holds_what_its_forms_say(self, small):
        for target, config in ((Target.OFFICIAL, SMALL), (Target.DIFFUSERS, SMALL), (Target.COMFY_NVFP4, SMALL_PRUNED)):
            stored = find_tensors(small.paths[target])
            assert {name: tensor.form for name, tensor in stored.items()} == self.forms(config, target)


class Stopped(Exception):
    pass


@pytest.fixture
def reads(monkeypatch):
    """Names of tensors, as they are read; `stop_at` raises when there are so many."""

    class Reads(list):
        stop_at = None

    reads, read = Reads(), TensorReader.read

    def recording(self, stored):
        if reads.stop_at == len(reads):
            raise Stopped
        header = find_tensors(stored.path)
        reads.extend(name for name, other in header.items() if other == stored)
        return read(self, stored)

    monkeypatch.setattr(TensorReader, "read", recording)
    return reads


class TestResuming:
    @pytest.mark.parametrize("target", [Target.OFFICIAL, Target.COMFY_NVFP4])
    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_one_that_was_stopped_goes_on_and_ends_with_the_same_bytes(self, small, tmp_path, reads, target, share):
        source = small.paths[Target.DIFFUSERS]
        convert(source, tmp_path / "undisturbed", target)
        undisturbed = [*reads]
        reads.clear()
        reads.stop_at = int(share * len(undisturbed))
        with pytest.raises(Stopped):
            convert(source, tmp_path / "x", target)
        assert list(tmp_path.rglob("*.partial"))
        first = [*reads]
        reads.clear()
        reads.stop_at = None
        convert(source, tmp_path / "x", target)
        assert_same_bytes(tensors_of(tmp_path / "x"), tensors_of(tmp_path / "undisturbed"))
        assert not list(tmp_path.rglob("*.partial"))
        # The qkv that tell their order, and the time embedding of a curve, are looked at each time; and the layer that
        # was being made when it was stopped.
        twice = {name for name in set(first) & set(reads) if ".attn.to_" not in name and "time_embedder" not in name}
        assert len({name.rpartition(".")[0] for name in twice}) <= 1, twice
        assert len(first) + len(reads) <= 1.4 * len(undisturbed)

    def test_shards_that_are_whole_are_kept(self, small, tmp_path, reads, monkeypatch):
        monkeypatch.setattr("h3.convert.SHARD_BYTES", 40_000)
        source = small.paths[Target.DIFFUSERS]
        reads.stop_at = 50
        with pytest.raises(Stopped):
            convert(source, tmp_path / "x", Target.OFFICIAL)
        first, *_ = sorted((tmp_path / "x").glob("*.safetensors"))
        before = first.stat()
        assert not (tmp_path / "x" / "config.json").exists()
        reads.stop_at = None
        convert(source, tmp_path / "x", Target.OFFICIAL)
        assert first.stat().st_mtime_ns == before.st_mtime_ns
        assert_same_bytes(tensors_of(tmp_path / "x"), tensors_of(small.paths[Target.OFFICIAL]))

    @pytest.mark.parametrize("target", Target)
    def test_one_that_is_whole_is_left_as_it_is(self, small, tmp_path, reads, target):
        source = small.paths[Target.OFFICIAL]
        convert(source, tmp_path / "x", target)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        reads.clear()
        convert(source, tmp_path / "x", target)
        assert {name for name in reads if "qkv_proj" not in name and "time_embedder" not in name} == set()
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def test_a_killed_command_goes_on(self, medium, tmp_path):
        source, target = medium.paths[Target.OFFICIAL], tmp_path / "x.safetensors"
        arguments = ["checkpoint", "convert", str(source), str(target), "--to", "comfy-nvfp4"]
        command = [*DIES_WITH_PARENT, sys.executable, "-m", "h3render", *arguments]
        partial, enough = tmp_path / "x.safetensors.partial", 5_000_000
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:

            def has_begun():
                assert child.poll() is None, child.communicate()
                return partial.exists() and partial.stat().st_size > enough

            eventually(has_begun, timeout_s=60, interval_s=0.001)
            os.kill(child.pid, signal.SIGKILL)
            assert child.wait(20) == -signal.SIGKILL
        assert partial.exists()
        assert not target.exists()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == str(target)
        convert(source, tmp_path / "undisturbed", Target.COMFY_NVFP4)
        assert target.read_bytes() == (tmp_path / "undisturbed").read_bytes()


class TestWhatIsThereAlready:
    """Another model of the same sizes has the same headers: the two partitions of H3 do."""

    @pytest.fixture
    def other(self, tmp_path):
        save_denoiser(random_denoiser(SMALL, seed=1), tmp_path / "other", Target.OFFICIAL)
        return tmp_path / "other"

    @pytest.mark.parametrize("target", Target)
    def test_another_model_is_never_taken_for_this_one(self, small, tmp_path, other, target):
        convert(other, tmp_path / "x", target)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(CheckpointError, match="is there already and holds something else: name another, or delete"):
            convert(small.paths[Target.OFFICIAL], tmp_path / "x", target)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    @pytest.mark.parametrize("target", Target)
    def test_what_was_written_of_another_model_is_not_gone_on_with(self, small, tmp_path, other, reads, target):
        reads.stop_at = 30
        with pytest.raises(Stopped):
            convert(other, tmp_path / "x", target)
        assert list(tmp_path.rglob("x*.partial") if target in FILES else (tmp_path / "x").glob("*.partial"))
        reads.stop_at = None
        convert(small.paths[Target.OFFICIAL], tmp_path / "x", target)
        convert(small.paths[Target.OFFICIAL], tmp_path / "expected", target)
        assert_same_bytes(tensors_of(tmp_path / "x"), tensors_of(tmp_path / "expected"))

    def test_a_model_in_memory_is_written_only_where_nothing_is(self, small, tmp_path):
        for target, path in ((Target.OFFICIAL, tmp_path / "folder"), (Target.COMFY_PRUNED, tmp_path / "file")):
            save_denoiser(small.model, path, target)
            with pytest.raises(CheckpointError, match="is there already and holds something else"):
                save_denoiser(small.model, path, target)

    @pytest.mark.parametrize("content", [b"", b"my own notes", b"\x10" + bytes(7) + b"x" * 16])
    def test_a_file_that_is_no_checkpoint_is_kept(self, small, tmp_path, content):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(CheckpointError, match=str(tmp_path / "x")):
            convert(small.paths[Target.OFFICIAL], tmp_path / "x", Target.COMFY_PRUNED)
        assert (tmp_path / "x").read_bytes() == content

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
    def test_a_folder_with_other_texts_is_kept(self, small, tmp_path, name):
        (tmp_path / name).write_text("{}")
        with pytest.raises(CheckpointError, match=f"{name} is there already and holds something else"):
            convert(small.paths[Target.DIFFUSERS], tmp_path, Target.OFFICIAL)
        assert [path.name for path in tmp_path.iterdir()] == [name]

    @pytest.mark.parametrize("target", FOLDERS)
    def test_the_source_itself_is_no_target(self, small, tmp_path, target):
        convert(small.paths[Target.DIFFUSERS], tmp_path / "x", Target.OFFICIAL)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(CheckpointError, match="is there already and holds something else"):
            convert(tmp_path / "x", tmp_path / "x", target)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def test_each_file_says_of_which_weights_it_is_made(self, small, tmp_path, other):
        origins = set()
        for name, source in (("a", small.paths[Target.OFFICIAL]), ("b", other)):
            convert(source, tmp_path / name, Target.COMFY_PRUNED)
            with safe_open(tmp_path / name, "pt") as file:
                origins.add(file.metadata()["h3render_origin"])
        assert len(origins) == 2


class TestMemory:
    """Measured in a process of its own, on a model of zeros that is many times larger than its largest tensor."""

    # Not getrusage, whose peak a child takes over from the process that it was forked from.
    PROGRAM = """
import sys
from pathlib import Path
from h3.convert import Target, convert

def tell(field):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024

small, large, folder, target = map(Path, sys.argv[1:])
convert(small, folder / "small", Target(target.name))  # some of torch is loaded only when it is used
before = tell("VmRSS:")
convert(large, folder / "large", Target(target.name))
print(before, tell("VmHWM:"))
"""

    @pytest.fixture(scope="class")
    @classmethod
    def large(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("large") / "official"
        config = MEDIUM.model_copy(update={"num_layers": MANY, "hidden_size": 512, "ffn_dim": 8192})
        units = list(Conversion(config, None, {}, None)._units(Target.OFFICIAL))
        folder.mkdir()
        forms = {name: form for unit in units for name, form in unit.forms.items()}
        with TensorWriter(folder / "model.safetensors", forms, {}, resume=False) as writer:
            end = writer._file.tell() + sum(form.size_bytes for form in forms.values())
            writer._file.truncate(end)  # a hole, which reads as zeros
        (folder / "model.safetensors.partial").rename(folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(official_config(config)))
        return folder, max(form.size_bytes for form in forms.values()), end

    @pytest.mark.slow
    def test_it_holds_one_tensor_at_a_time(self, small, large, tmp_path, record_property, full):
        for target in (Target.DIFFUSERS, Target.COMFY_NVFP4) if full else (Target.DIFFUSERS,):
            self.check_memory(small, large, tmp_path / target, record_property, target)

    def check_memory(self, small, large, folder, record_property, target):
        folder.mkdir()
        source, largest, size = large
        arguments = [small.paths[Target.OFFICIAL], source, folder, target]
        command = [sys.executable, "-c", self.PROGRAM, *map(str, arguments)]
        # Large pieces go back to the system when they are freed: what is measured is what is held.
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
        before, peak = map(int, done.stdout.split())
        record_property("bytes", {"size": size, "largest": largest, "before": before, "peak": peak})
        assert peak <= before + 4 * largest + 100 * 2**20
        assert size > 1.5 * (4 * largest + 100 * 2**20)


class TestUntrained:
    @pytest.mark.parametrize(("to", "precision"), [(FILES[0], Precision.BF16), (FILES[1], Precision.NVFP4)])
    def test_a_file_of_random_weights_holds_those_that_are_drawn_in_memory(self, tmp_path, to, precision):
        source = Untrained(with_curve(MEDIUM))
        save_untrained(source, tmp_path / "drawn.safetensors", to, CPU)
        loaded = load_denoiser(tmp_path / "drawn.safetensors", CPU)
        assert_same_bytes(loaded.state_dict(), source.load(CPU, precision).state_dict())

    def test_what_is_there_is_kept_and_other_weights_are_refused(self, tmp_path):
        path = tmp_path / "drawn.safetensors"
        save_untrained(Untrained(SMALL_PRUNED), path, Target.COMFY_NVFP4, CPU)
        written = path.stat().st_mtime_ns
        save_untrained(Untrained(SMALL_PRUNED), path, Target.COMFY_NVFP4, CPU)
        assert path.stat().st_mtime_ns == written
        with pytest.raises(CheckpointError, match="holds something else"):
            save_untrained(Untrained(SMALL_PRUNED, seed=1), path, Target.COMFY_NVFP4, CPU)
