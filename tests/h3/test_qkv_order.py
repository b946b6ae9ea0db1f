"""What weights themselves say of the order of q, k and v: a file in the wrong one loads to noise without any error."""

import re
import shlex

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import h3render
from h3.checkpoint import DenoiserFiles, load_denoiser
from h3.convert import Target, convert, save_denoiser
from h3.errors import CheckpointError
from h3.families import QkvOrder
from h3.model import MODEL_DTYPE
from h3.precision import Precision
from h3.qkv_order import QkvEvidence, telling_layers, weigh_order
from tests.h3.checkpoint_files import (
    LINEARS,
    QKV,
    SMALL,
    SMALL_PRUNED,
    comfy_tensors,
    cut_heads,
    interleave,
    official_tensors,
    quantise_layers,
    write_comfy,
    write_official,
)
from tests.h3.random_models import random_denoiser

CPU = torch.device("cpu")
V_SHARE = 0.6


def train(model):
    """Make v smaller than q and k, as training does."""
    for name, parameter in model.named_parameters():
        if name.endswith("qkv_proj.weight"):
            for (part, _), rows in cut_heads(parameter.data, model.config).items():
                rows *= V_SHARE if part == 2 else 1
    return model


@pytest.fixture(scope="module")
def trained():
    return train(random_denoiser(SMALL))


@pytest.fixture(scope="module")
def trained_pruned():
    return train(random_denoiser(SMALL_PRUNED))


def comfy_interleaved(model):
    """A single file's tensors with the rows of the official shards."""
    return {
        name: interleave(tensor, model.config) if name.endswith("qkv_proj.weight") else tensor
        for name, tensor in comfy_tensors(model).items()
    }


class TestEvidence:
    @pytest.mark.parametrize("order", QkvOrder)
    def test_rows_that_are_read_in_the_right_order_say_so(self, trained, order):
        evidence = weigh_order(trained.get_submodule(QKV).weight, order, SMALL.num_attention_heads)
        assert evidence.order is (QkvOrder.INTERLEAVED if order is QkvOrder.INTERLEAVED else QkvOrder.CONTIGUOUS)

    @pytest.mark.parametrize("order", [QkvOrder.INTERLEAVED, QkvOrder.CONTIGUOUS])
    def test_rows_that_are_read_in_the_wrong_order_name_the_other(self, trained, order):
        mixed = interleave(trained.get_submodule(QKV).weight, SMALL)
        if order is QkvOrder.INTERLEAVED:  # q, k and v apart in the file, taken for interleaved
            heads = cut_heads(trained.get_submodule(QKV).weight, SMALL)
            rows = [*heads.values()]
            mixed = torch.cat([rows[3 * (i % 3) + i // 3] for i in range(9)])
        evidence = weigh_order(mixed, order, SMALL.num_attention_heads)
        assert {evidence.order, order} == {QkvOrder.INTERLEAVED, QkvOrder.CONTIGUOUS}
        assert max(evidence.contiguous, evidence.interleaved) > 0.5
        assert re.fullmatch(r"spread of mean magnitudes [\d.]+% contiguous, [\d.]+% interleaved", str(evidence))

    @pytest.mark.parametrize("order", QkvOrder)
    def test_untrained_weights_say_nothing(self, order):
        for seed in range(20):
            weight = torch.randn(3 * 8 * 64, 64, generator=torch.Generator().manual_seed(seed))
            assert weigh_order(weight, order, 8).order is None

    @pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
    def test_weights_without_magnitudes_say_nothing(self, value):
        evidence = weigh_order(torch.full((144, 8), value), QkvOrder.CONTIGUOUS, 3)
        assert (evidence.contiguous, evidence.interleaved, evidence.order) == (0, 0, None)

    def test_one_head_lies_alike_in_both_orders(self, trained):
        assert weigh_order(trained.get_submodule(QKV).weight, QkvOrder.CONTIGUOUS, 1).order is None

    @pytest.mark.parametrize(
        ("contiguous", "interleaved", "order"),
        [
            (0.2, 0.01, QkvOrder.CONTIGUOUS),
            (0.01, 0.2, QkvOrder.INTERLEAVED),
            (0.04, 0.0, None),
            (0.2, 0.1, None),
            (0.0, 0.0, None),
        ],
    )
    def test_only_a_clear_difference_speaks(self, contiguous, interleaved, order):
        assert QkvEvidence(contiguous, interleaved).order is order

    def test_the_first_a_middle_and_the_last_block_are_asked(self):
        config = SMALL.model_copy(update={"num_layers": 50})
        assert telling_layers(config) == [f"blocks.{i}.attn.qkv_proj" for i in (0, 25, 49)]
        assert telling_layers(SMALL.model_copy(update={"num_layers": 1})) == [QKV]


class TestRightOrder:
    @pytest.mark.parametrize("target", Target)
    def test_a_trained_model_loads_from_every_format(self, trained, trained_pruned, tmp_path, target):
        folder = target in (Target.OFFICIAL, Target.DIFFUSERS)
        save_denoiser(trained if folder else trained_pruned, tmp_path / "x", target)
        loaded = load_denoiser(tmp_path / "x", CPU, Precision.BF16).get_submodule(QKV).weight
        expected = (trained if folder else trained_pruned).get_submodule(QKV).weight
        assert (loaded - expected).norm() / expected.norm() < 0.15

    def test_untrained_rows_load_in_any_order(self, small, tmp_path):
        """There is nothing that speaks against it."""
        load_denoiser(write_official(tmp_path / "official", small.model.state_dict(), SMALL), CPU)
        load_denoiser(write_comfy(tmp_path / "x.safetensors", comfy_interleaved(small.pruned)), CPU)


def quantised(tensors):
    """All that an NVFP4 file packs."""
    return quantise_layers(tensors, {f"blocks.{i}.{linear}": "nvfp4" for i in range(2) for linear in LINEARS})


@pytest.fixture
def wrong(trained, trained_pruned, tmp_path):
    """By name: files whose rows lie otherwise than their family has them, and the right weights of their qkv."""
    right = trained.get_submodule(QKV).weight
    packed, markers, stands_for = quantised(comfy_interleaved(trained_pruned))
    rows = stands_for[f"{QKV}.weight"]
    pieces = [*rows.split(SMALL.attention_head_dim)]
    apart = torch.cat([pieces[3 * head + part] for part in range(3) for head in range(3)])
    return {
        "official": (write_official(tmp_path / "official", trained.state_dict(), SMALL), right),
        "one file": (write_comfy(tmp_path / "plain.safetensors", comfy_interleaved(trained)), right),
        "comfy-pruned": (
            write_comfy(tmp_path / "pruned.safetensors", comfy_interleaved(trained_pruned)),
            trained_pruned.get_submodule(QKV).weight,
        ),
        "comfy-nvfp4": (write_comfy(tmp_path / "nvfp4.safetensors", packed, markers), apart.to(MODEL_DTYPE)),
    }


WRONG = ["official", "one file", "comfy-pruned", "comfy-nvfp4"]


class TestWrongOrder:
    @pytest.mark.parametrize("case", WRONG)
    def test_it_is_refused_with_the_evidence_and_the_remedy_heals_it(self, wrong, tmp_path, case):
        path, right = wrong[case]
        read, truly = ("interleaved", "contiguous") if case == "official" else ("contiguous", "interleaved")
        with pytest.raises(CheckpointError) as refusal:
            load_denoiser(path, CPU)
        told = re.fullmatch(
            rf"{path}: the rows of {QKV} are read as {read}, but its weights say {truly} \(spread of mean magnitudes "
            rf"[\d.]+% contiguous, [\d.]+% interleaved\); if they are right: h3render (.*)",
            str(refusal.value),
        )
        assert told, refusal.value
        new = tmp_path / "healed"
        healed = CliRunner().invoke(h3render.app, [str(new) if w == "NEW" else w for w in shlex.split(told[1])])
        assert healed.exit_code == 0, healed.output
        assert torch.equal(load_denoiser(new, CPU, Precision.BF16).get_submodule(QKV).weight, right)
        load_denoiser(new, CPU)

    def test_packed_rows_keep_their_codes_when_they_are_put_in_order(self, wrong, tmp_path):
        path, _ = wrong["comfy-nvfp4"]
        convert(path, tmp_path / "new", Target.COMFY_NVFP4, QkvOrder.INTERLEAVED)
        old, new = load_file(path), load_file(tmp_path / "new")
        rows = old[f"{QKV}.weight"].split(SMALL.attention_head_dim)
        assert torch.equal(
            new[f"{QKV}.weight"], torch.cat([rows[3 * head + part] for part in range(3) for head in range(3)])
        )
        assert new[f"{QKV}.weight_scale_2"] == old[f"{QKV}.weight_scale_2"]
        bytes_ = [f[f"{QKV}.weight_scale"].view(torch.uint8).flatten().sort().values for f in (old, new)]
        assert torch.equal(*bytes_)

    def test_packed_rows_load_in_a_stated_order_packed_and_widened(self, wrong):
        path, right = wrong["comfy-nvfp4"]
        files = DenoiserFiles.open(path, QkvOrder.INTERLEAVED)
        assert torch.equal(files.load(CPU, Precision.BF16).get_submodule(QKV).weight, right)
        layer = files.load(CPU).get_submodule(QKV)
        x = torch.eye(SMALL.hidden_size, dtype=MODEL_DTYPE)
        assert torch.equal(layer(x).T, right)

    @pytest.mark.parametrize(
        ("case", "target"),
        [(case, Target.COMFY_NVFP4) for case in WRONG] + [(case, Target.DIFFUSERS) for case in WRONG[:2]],
    )
    def test_it_is_not_converted_unless_the_order_is_stated(self, wrong, tmp_path, case, target):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(CheckpointError, match=r"but its weights say .*--qkv-order"):
            convert(wrong[case][0], tmp_path / "new", target)
        assert sorted(tmp_path.iterdir()) == before

    def test_a_mistaken_statement_is_refused_too(self, trained, tmp_path):
        folder = write_official(tmp_path / "official", official_tensors(trained), SMALL)
        with pytest.raises(CheckpointError, match=r"read as contiguous, but its weights say interleaved"):
            convert(folder, tmp_path / "new", Target.DIFFUSERS, QkvOrder.CONTIGUOUS)
        convert(folder, tmp_path / "new", Target.DIFFUSERS, QkvOrder.INTERLEAVED)
        assert torch.equal(
            load_denoiser(tmp_path / "new", CPU).get_submodule(QKV).weight, trained.get_submodule(QKV).weight
        )
