"""`h3render checkpoint inspect` and `convert`, as a person and a program meet them."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import h3render
from h3.checkpoint import load_denoiser
from h3.convert import Target
from h3.inspection import inspect
from tests.h3.checkpoint_files import (
    LINEARS,
    PREFIX,
    QKV,
    SMALL,
    comfy_tensors,
    official_tensors,
    quantise_layers,
    write_comfy,
    write_official,
)

CPU = torch.device("cpu")


@pytest.fixture
def run():
    """The command in this process; returns what it says."""

    def run(*arguments, code=0):
        done = CliRunner().invoke(h3render.app, ["checkpoint", *map(str, arguments)])
        assert done.exit_code == code, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture
def mixed(small, tmp_path):
    tensors, markers, _ = quantise_layers(
        comfy_tensors(small.pruned), {QKV: "nvfp4", "blocks.0.mlp.fc1": "float8_e4m3fn", "blocks.1.mlp.fc1": "nvfp4"}
    )
    return write_comfy(tmp_path / "mixed.safetensors", tensors, markers, PREFIX)


class TestInspect:
    def test_a_person_sees_all_of_an_official_folder(self, small, run):
        path = small.paths[Target.OFFICIAL]
        shards = sorted(path.glob("*.safetensors"))
        size = sum(t.numel() * t.element_size() for t in small.model.state_dict().values())
        lines = run("inspect", path).splitlines()
        assert lines[:2] == [
            f"format     official: {len(small.model.state_dict())} tensors, {size / 1e9:.2f} GB",
            "model      2 blocks, 3 heads of 16, width 32, ffn 48",
        ]
        assert set(lines[2:-6]) == {
            "precision  patch projections: float32 x 4",
            "precision  text projection: bfloat16 x 2",
            "precision  time embedding: float32 x 4",
            "precision  other: float32 x 1",
            "precision  refiner: bfloat16 x 9",
            "precision  attention qkv: bfloat16 x 2",
            "precision  attention output: bfloat16 x 2",
            "precision  mlp fc1: bfloat16 x 2",
            "precision  mlp fc2: bfloat16 x 2",
            "precision  norms: bfloat16 x 9",
            "precision  adaln: bfloat16 x 6",
            "precision  output heads: float32 x 4",
        }
        assert lines[-6] == "qkv order  interleaved, as the official format has it"
        assert all(line.startswith(f"evidence   blocks.{i}.attn") for i, line in enumerate(lines[-5:-3]))
        assert all(line.endswith("interleaved: says nothing") for line in lines[-5:-3])
        assert lines[-3:] == [
            f"file       {shard.name}, {shard.stat().st_size} bytes, "
            f"sha256 {hashlib.sha256(shard.read_bytes()).hexdigest()}"
            for shard in shards
        ]

    def test_a_program_reads_the_same_of_a_mixed_file(self, mixed, run):
        told = json.loads(run("inspect", mixed, "--json"))
        assert (told["family"], told["order"], told["tensors"]) == ("comfy", "contiguous", len(load_names(mixed)))
        assert told["config"]["curve_points"] == 9
        assert told["formats"]["attention qkv"] == {"nvfp4": 1, "bfloat16": 1}
        assert told["formats"]["mlp fc1"] == {"float8_e4m3fn": 1, "nvfp4": 1}
        assert told["formats"]["adaln"] == {"float16": 6}
        assert told["formats"]["adaln curve"] == {"float32": 1}
        assert told["evidence"].keys() == {f"blocks.{i}.attn.qkv_proj" for i in (0, 1)}
        assert all(evidence.keys() == {"contiguous", "interleaved"} for evidence in told["evidence"].values())
        assert told["files"] == [
            {
                "name": mixed.name,
                "size_bytes": mixed.stat().st_size,
                "sha256": hashlib.sha256(mixed.read_bytes()).hexdigest(),
            }
        ]

    def test_a_pruned_file_is_called_so(self, small, run):
        assert run("inspect", small.paths[Target.COMFY_NVFP4]).startswith("format     comfy, pruned: ")
        formats = inspect(small.paths[Target.COMFY_NVFP4]).formats
        kinds = ("attention qkv", "attention output", "mlp fc1", "mlp fc2")
        assert [formats[kind] for kind in kinds] == [{"nvfp4": SMALL.num_layers}] * len(LINEARS)
        assert formats["refiner"] == {"bfloat16": 9}

    @pytest.mark.parametrize("target", Target)
    def test_each_tensor_of_the_model_is_counted_once(self, small, target):
        formats = inspect(small.paths[target]).formats
        count = len(small.model_in(target).state_dict()) - (target is Target.DIFFUSERS)  # which computes frequencies
        assert sum(number for kind in formats.values() for number in kind.values()) == count

    def test_the_denoiser_is_found_below_a_checkpoints_root(self, tiny, run):
        assert run("inspect", tiny.transformer.parents[1]) == run("inspect", tiny.transformer)

    def test_evidence_against_the_order_is_shown(self, small, tmp_path, run):
        tensors = small.model.state_dict()
        for i in range(2):
            weight = tensors[f"blocks.{i}.attn.qkv_proj.weight"] = tensors[f"blocks.{i}.attn.qkv_proj.weight"].clone()
            weight[96:] /= 2
        wrong = run("inspect", write_official(tmp_path / "wrong", tensors, SMALL))
        assert "qkv order  interleaved, as the official format has it" in wrong
        assert wrong.count("interleaved: it is contiguous\n") == 2

    def test_what_cannot_be_loaded_is_told_without_a_traceback(self, small, tmp_path, run):
        (tmp_path / "x.safetensors").write_bytes(small.paths[Target.COMFY_NVFP4].read_bytes()[:-1])
        assert "x.safetensors is cut short in tensor final_layer.audio_out.bias" in run(
            "inspect", tmp_path / "x.safetensors", code=2
        )
        assert "gone is missing: is this the path of an H3 checkpoint?" in run("inspect", tmp_path / "gone", code=2)
        assert "config.json is missing: is this the folder of an H3 checkpoint?" in run("inspect", tmp_path, code=2)


def load_names(path):
    header = path.read_bytes()
    size = int.from_bytes(header[:8], "little")
    return json.loads(header[8 : 8 + size]).keys() - {"__metadata__"}


class TestConvert:
    @pytest.mark.parametrize("target", Target)
    def test_it_prints_where_the_new_one_is(self, small, tmp_path, run, target):
        assert run("convert", small.paths[Target.OFFICIAL], tmp_path / "x", "--to", target) == f"{tmp_path / 'x'}\n"
        load_denoiser(tmp_path / "x", CPU)

    def test_the_denoiser_is_found_below_a_checkpoints_root(self, tiny, tmp_path, run):
        run("convert", tiny.transformer.parents[1], tmp_path / "x", "--to", "diffusers")
        assert torch.equal(
            load_denoiser(tmp_path / "x", CPU).get_submodule(QKV).weight,
            load_denoiser(tiny.transformer, CPU).get_submodule(QKV).weight,
        )

    def test_an_order_can_be_stated(self, small, tmp_path, run):
        source = write_comfy(tmp_path / "x.safetensors", official_tensors(small.model))
        run("convert", source, tmp_path / "new", "--to", "official", "--qkv-order", "interleaved")
        assert torch.equal(
            load_denoiser(tmp_path / "new", CPU).get_submodule(QKV).weight, small.model.get_submodule(QKV).weight
        )

    def test_a_format_or_order_that_there_is_not_is_refused_with_those_that_there_are(self, small, tmp_path, run):
        arguments = ["convert", small.paths[Target.OFFICIAL], tmp_path / "x", "--to"]
        assert run(*arguments, "gguf", code=2) == (
            "--to 'gguf' is not one of official, diffusers, comfy-pruned, comfy-nvfp4\n"
        )
        assert run(*arguments, "diffusers", "--qkv-order", "mixed", code=2).startswith(
            "--qkv-order 'mixed' is not one of interleaved, contiguous"
        )
        assert "Missing option '--to'" in run(*arguments[:-1], code=2)
        assert not (tmp_path / "x").exists()

    def test_what_a_format_cannot_hold_is_told(self, small, tmp_path, run):
        assert "a pruned checkpoint cannot become diffusers: its time embedding is gone" in run(
            "convert", small.paths[Target.COMFY_NVFP4], tmp_path / "x", "--to", "diffusers", code=2
        )

    def test_a_place_that_is_taken_is_told(self, small, tmp_path, run):
        (tmp_path / "file").write_text("mine")
        for taken, target in (
            (tmp_path, "comfy-pruned"),
            (tmp_path / "file", "official"),
            (tmp_path / "file", "comfy-pruned"),
        ):
            assert str(taken) in run("convert", small.paths[Target.OFFICIAL], taken, "--to", target, code=2)
        assert (tmp_path / "file").read_text() == "mine"


class TestRealCommand:
    def start(self, *arguments):
        command = [sys.executable, "-m", "h3render", "checkpoint", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr
        return done

    def test_its_json_is_all_of_its_output(self, mixed):
        with mixed.open("ab") as file:
            file.write(bytes(65))
        done = self.start("inspect", mixed, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["family"] == "comfy"
        assert "65 bytes after its last tensor" in done.stderr

    def test_a_name_that_no_terminal_can_show_is_no_reason_for_a_traceback(self, small, tmp_path):
        """A lone surrogate, which JSON can hold."""
        file = write_comfy(tmp_path / "x.safetensors", comfy_tensors(small.pruned) | {"extra": torch.zeros(1)})
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + size].replace(b'"extra"', b'"\\ud800"')
        file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
        done = self.start("convert", file, tmp_path / "new", "--to", "comfy-nvfp4")
        assert done.returncode == 2
        assert "x.safetensors holds tensor \\ud800 (and 0 more) that H3 has no place for" in done.stderr
