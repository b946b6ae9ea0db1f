"""safetensors files: ours are everyone's, and one that is damaged is refused from its header."""

import json
import logging

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from h3.errors import CheckpointError
from h3.tensor_file import (
    DTYPES,
    TensorForm,
    TensorReader,
    TensorWriter,
    find_tensors,
    read_header,
    write_tensors,
)

CPU = torch.device("cpu")
BF16_4 = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
NESTED = b'{"a":' * 100_000


def write_raw(path, header, payload=bytes(16)):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + payload)
    return path


def tensors_of_every_dtype():
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, dtype in DTYPES.items():
        size = 0 if dtype == torch.float64 else 6
        tensors[name] = torch.randint(0, 2, (2, size, 3), generator=generator).to(dtype)
    return tensors | {"scalar": torch.tensor(0.25), "strided": torch.arange(6.0).view(2, 3).T}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].double(), tensor.double())


def read_all(stored):
    with TensorReader(CPU) as reader:
        return {name: reader.read(tensor) for name, tensor in stored.items()}


class TestFormat:
    def test_the_formats_own_library_reads_what_is_written(self, tmp_path):
        tensors = tensors_of_every_dtype()
        write_tensors(tmp_path / "x.safetensors", tensors, {"format": "pt", "who": "wir \u00fc"})
        assert_equal(load_file(tmp_path / "x.safetensors"), tensors)
        with safe_open(tmp_path / "x.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt", "who": "wir \u00fc"}

    def test_what_the_formats_own_library_writes_is_read(self, tmp_path):
        tensors = {name: tensor.contiguous() for name, tensor in tensors_of_every_dtype().items()}
        save_file(tensors, tmp_path / "x.safetensors", {"a": "b"})
        header = read_header(tmp_path / "x.safetensors")
        assert header.metadata == {"a": "b"}
        assert_equal(read_all(header.tensors), tensors)

    def test_tensors_begin_where_everyone_can_map_them(self, tmp_path):
        for count in range(1, 9):
            write_tensors(tmp_path / "x.safetensors", {"n" * count: torch.zeros(3)}, {})
            assert read_header(tmp_path / "x.safetensors").tensors["n" * count].begin % 8 == 0

    def test_a_header_of_any_length_and_order_is_read(self, tmp_path):
        header = {"b": BF16_4 | {"data_offsets": [8, 16]}, "a": BF16_4, "__metadata__": {}}
        for padding in range(3):
            file = write_raw(tmp_path / "x", json.dumps(header).encode() + b" " * padding)
            assert list(read_header(file).tensors) == ["a", "b"]


DAMAGED = {
    "no JSON": (b"{" + b"x" * 40, "has a header that is not safetensors"),
    "no object": (b"[1, 2, 3]", "has a header that is not safetensors (no object)"),
    "not UTF-8": (b'{"a\xff": 3}', "has a header that is not safetensors ('utf-8' codec can't decode"),
    "UTF-16": (json.dumps({"a": BF16_4}).encode("utf-16"), "has a header that is not safetensors"),
    "nested": (NESTED, "has a header that is not safetensors (maximum recursion depth"),
    "twice": (b'{"a": 1, "b": 2, "a": 3}', "'a' stands there twice"),
    "field twice": (b'{"a": {"dtype": "BF16", "dtype": "F16"}}', "'dtype' stands there twice"),
    "many digits": (b'{"a": ' + b"9" * 5000 + b"}", "has a header that is not safetensors (Exceeds the limit"),
    "entry is no object": ({"a": 3}, "the header's entry of a is not safetensors"),
    "no dtype": ({"a": {"shape": [4], "data_offsets": [0, 8]}}, "the header's entry of a is not"),
    "no shape": ({"a": {"dtype": "BF16", "data_offsets": [0, 8]}}, "the header's entry of a is not"),
    "no offsets": ({"a": {"dtype": "BF16", "shape": [4]}}, "the header's entry of a is not"),
    "one offset": ({"a": BF16_4 | {"data_offsets": [0]}}, "the header's entry of a is not"),
    "offsets are texts": ({"a": BF16_4 | {"data_offsets": ["0", "8"]}}, "the header's entry of a is not"),
    "offsets are truths": (
        {"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}},
        "the header's entry of a is not",
    ),
    "offsets are turned": ({"a": BF16_4 | {"data_offsets": [8, 0]}}, "the header's entry of a is not"),
    "offsets are below zero": ({"a": BF16_4 | {"data_offsets": [-8, 0]}}, "the header's entry of a is not"),
    "offsets are huge": ({"a": BF16_4 | {"data_offsets": [10**4000, 10**4000]}}, "the header's entry of a is not"),
    "shape is a number": ({"a": BF16_4 | {"shape": 4}}, "the header's entry of a is not"),
    "size is a fraction": ({"a": BF16_4 | {"shape": [4.0]}}, "the header's entry of a is not"),
    "size is no number": ({"a": BF16_4 | {"shape": [None]}}, "the header's entry of a is not"),
    "size is below zero": ({"a": BF16_4 | {"shape": [-4]}}, "the header's entry of a is not"),
    "sizes are huge": ({"a": BF16_4 | {"shape": [10**4000, 10**4000]}}, "the header's entry of a is not"),
    "too many values": ({"a": BF16_4 | {"shape": [0, 2**40, 2**40]}}, "the header's entry of a is not"),
    "too many dims": ({"a": BF16_4 | {"shape": [1] * 90 + [4]}}, "the header's entry of a is not"),
    "unknown dtype": ({"a": BF16_4 | {"dtype": "F4"}}, "a has dtype 'F4', expected one of BOOL, U8"),
    "another size": ({"a": BF16_4 | {"shape": [5]}}, "a is [5] bfloat16, which is 10 bytes, but 8 are given to it"),
    "another dtype": ({"a": BF16_4 | {"dtype": "F32"}}, "a is [4] float32, which is 16 bytes, but 8 are given to it"),
    "overlap": (
        {"a": BF16_4, "b": BF16_4 | {"data_offsets": [4, 12]}},
        "b begins at byte 137, expected 141: the file is damaged or padded",
    ),
    "hole": (
        {"a": BF16_4, "b": BF16_4 | {"data_offsets": [10, 18]}},
        "b begins at byte 144, expected 142: the file is damaged or padded",
    ),
    "padded before": (
        {"a": BF16_4 | {"data_offsets": [8, 16]}},
        "a begins at byte 79, expected 71: the file is damaged or padded",
    ),
    "cut": (
        {"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}},
        "is cut short in tensor a, which ends at byte 90 of 86: fetch it again",
    ),
    "metadata is a text": ({"__metadata__": "pt", "a": BF16_4}, "__metadata__ is not a table of texts"),
    "metadata hold a number": ({"__metadata__": {"n": 3}, "a": BF16_4}, "__metadata__ is not a table of texts"),
}


class TestDamage:
    @pytest.mark.parametrize("case", DAMAGED)
    def test_a_header_that_contradicts_itself_or_the_file_is_refused(self, tmp_path, case):
        header, message = DAMAGED[case]
        file = write_raw(tmp_path / "x.safetensors", header)
        with pytest.raises(CheckpointError) as refusal:
            read_header(file)
        assert message in str(refusal.value)
        assert str(file) in str(refusal.value)

    @pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 50])
    def test_a_file_that_ends_in_its_header_is_named_with_its_size(self, tmp_path, size):
        file = write_raw(tmp_path / "x.safetensors", {"a": BF16_4})
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(CheckpointError, match=rf"x.safetensors \({size} bytes\) is no safetensors file or ends in"):
            read_header(file)

    @pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1, 101 * 2**20])
    def test_a_length_without_sense_is_refused_before_anything_is_read(self, tmp_path, length):
        file = write_raw(tmp_path / "x.safetensors", {"a": BF16_4})
        file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
        with file.open("r+b") as sparse:
            sparse.truncate(200 * 2**20)
        with pytest.raises(CheckpointError, match="is no safetensors file or ends in its header"):
            read_header(file)

    @pytest.mark.parametrize("less", range(1, 7))
    def test_a_length_that_leaves_out_padding_would_shift_every_tensor_and_is_refused(self, tmp_path, less):
        header = json.dumps({"a": BF16_4, "b": BF16_4 | {"data_offsets": [8, 16]}}).encode() + b" " * 6
        file = write_raw(tmp_path / "x.safetensors", header)
        file.write_bytes((len(header) - less).to_bytes(8, "little") + file.read_bytes()[8:])
        with pytest.raises(CheckpointError, match="has a header that is longer than the file says"):
            read_header(file)

    def test_bytes_after_the_last_tensor_are_told(self, tmp_path, caplog):
        file = write_raw(tmp_path / "x.safetensors", {"a": BF16_4}, b" " * 7 + bytes(9))
        with caplog.at_level(logging.WARNING):
            assert read_header(file).tensors["a"].form == TensorForm(torch.bfloat16, (4,))
        assert "has 8 bytes after its last tensor; they are ignored" in caplog.text

    def test_what_is_no_file_is_told_apart_from_what_is_missing(self, tmp_path):
        with pytest.raises(CheckpointError, match=rf"{tmp_path} is no file$"):
            read_header(tmp_path)
        with pytest.raises(CheckpointError, match=r"x.safetensors is missing: fetch it again"):
            read_header(tmp_path / "x.safetensors")

    def test_a_file_that_has_become_shorter_is_named(self, tmp_path):
        file = write_raw(tmp_path / "x.safetensors", {"a": BF16_4 | {"shape": [8], "data_offsets": [0, 16]}})
        stored = read_header(file).tensors
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match=r"x.safetensors has become shorter while it was read"):
            read_all(stored)


@pytest.fixture
def shards(tmp_path):
    """Two shards with two tensors each, and their index."""
    index = {}
    for number in (1, 2):
        names = [f"{letter}{number}" for letter in "ab"]
        save_file({name: torch.full((4,), float(number)) for name in names}, tmp_path / f"{number}.safetensors")
        index |= dict.fromkeys(names, f"{number}.safetensors")
    return write_index(tmp_path, index)


def write_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def read_index(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


class TestShards:
    def refusal(self, folder):
        with pytest.raises(CheckpointError) as refusal:
            find_tensors(folder)
        return str(refusal.value)

    def test_tensors_of_all_shards_are_found(self, shards):
        found = find_tensors(shards)
        assert {name: stored.path.name for name, stored in found.items()} == read_index(shards)

    def test_a_missing_shard_is_named_with_a_tensor_that_it_holds(self, shards):
        (shards / "2.safetensors").unlink()
        assert self.refusal(shards) == f"{shards}/2.safetensors is missing, which holds tensor a2: fetch it again"

    def test_a_shard_without_a_tensor_that_it_is_to_hold_is_named(self, shards):
        save_file({"a2": torch.zeros(4)}, shards / "2.safetensors")
        assert "2.safetensors lacks tensor b2, which model.safetensors.index.json lists" in self.refusal(shards)

    def test_a_tensor_in_another_shard_than_the_index_says_is_refused(self, shards):
        write_index(shards, read_index(shards) | {"a1": "2.safetensors"})
        assert "2.safetensors lacks tensor a1, which model.safetensors.index.json lists" in self.refusal(shards)

    def test_a_tensor_in_two_shards_is_refused(self, shards):
        save_file({name: torch.zeros(4) for name in ("a1", "a2", "b2")}, shards / "2.safetensors")
        assert self.refusal(shards) == f"{shards}/2.safetensors holds tensor a1, as does {shards}/1.safetensors"

    @pytest.mark.parametrize("name", ["../2.safetensors", "/etc/passwd", "./2.safetensors", "a" * 300, "\u00fc" * 150])
    def test_a_shard_is_a_file_beside_its_index(self, shards, name):
        write_index(shards, read_index(shards) | {"a1": name})
        assert "which is to hold tensor a1, is no name of a file beside it" in self.refusal(shards)

    @pytest.mark.parametrize("name", ["a\0b", "\ud800", "", ".."])
    def test_a_shard_with_a_name_that_no_file_has_is_missing(self, shards, name):
        write_index(shards, read_index(shards) | {"a1": name})
        assert "is missing, which holds tensor a1" in self.refusal(shards)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"{}",
            b"[]",
            b'{"weight_map": []}',
            b'{"weight_map": {"a1": 3}}',
            b'{"weight_map": {"a1": "1.safetensors", "a1": "2.safetensors"}}',
            b'\xff{"weight_map": {}}',
            NESTED,
        ],
    )
    def test_an_index_that_is_none_is_named(self, shards, text):
        (shards / "model.safetensors.index.json").write_bytes(text)
        assert "model.safetensors.index.json is not an index of shards" in self.refusal(shards)

    def test_two_indices_or_two_files_without_one_are_ambiguous(self, shards):
        (shards / "other.safetensors.index.json").write_text("{}")
        assert "holds model.safetensors.index.json, other.safetensors.index.json: which one" in self.refusal(shards)
        for index in shards.glob("*.json"):
            index.unlink()
        assert "holds 1.safetensors, 2.safetensors: which one is meant?" in self.refusal(shards)

    def test_a_folder_without_tensors_is_named(self, tmp_path):
        assert self.refusal(tmp_path) == f"{tmp_path} holds no *.safetensors: is it the folder of a checkpoint?"
        assert "holds no *.safetensors" in self.refusal(tmp_path / "gone")


class TestWriter:
    TENSORS = {name: torch.arange(float(1000 * size)) for size, name in enumerate("abcd", start=1)}  # noqa: RUF012
    FORMS = {name: TensorForm(tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()}  # noqa: RUF012

    def start(self, path, count, metadata=None):
        """Write so many tensors, then stop."""
        with TensorWriter(path, self.FORMS, metadata or {}, resume=True) as writer:
            for name in writer.remaining[:count]:
                writer.write(self.TENSORS[name])
        return path.with_name(f"{path.name}.partial")

    def go_on(self, path, metadata=None):
        """Write what remains, and tell what that was."""
        with TensorWriter(path, self.FORMS, metadata or {}, resume=True) as writer:
            remaining = writer.remaining
            for name in remaining:
                writer.write(self.TENSORS[name])
            writer.finish()
        assert_equal(load_file(path), self.TENSORS)
        return "".join(remaining)

    def test_a_file_has_its_name_only_when_it_is_whole(self, tmp_path):
        partial = self.start(tmp_path / "x", 4)
        assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
        assert self.go_on(tmp_path / "x") == ""
        assert not partial.exists()

    @pytest.mark.parametrize("count", range(5))
    def test_it_goes_on_behind_the_last_whole_tensor(self, tmp_path, count):
        self.start(tmp_path / "x", count)
        assert self.go_on(tmp_path / "x") == "abcd"[count:]

    @pytest.mark.parametrize("cut", [1, 3999, 4001, 12_000])
    def test_a_tensor_that_was_half_written_is_written_again(self, tmp_path, cut):
        partial = self.start(tmp_path / "x", 2)
        partial.write_bytes(partial.read_bytes()[:-cut])
        assert self.go_on(tmp_path / "x") in ("bcd", "abcd")

    def test_junk_behind_the_end_is_cut_off(self, tmp_path):
        partial = self.start(tmp_path / "x", 4)
        partial.write_bytes(partial.read_bytes() + b"junk")
        assert self.go_on(tmp_path / "x") == ""

    @pytest.mark.parametrize("earlier", [b"", b"\1\2\3", b"x" * 100_000])
    def test_something_else_under_the_partial_name_is_written_over(self, tmp_path, earlier):
        (tmp_path / "x.partial").write_bytes(earlier)
        assert self.go_on(tmp_path / "x") == "abcd"

    def test_a_try_with_other_metadata_is_something_else(self, tmp_path):
        self.start(tmp_path / "x", 2, {"origin": "1"})
        assert self.go_on(tmp_path / "x", {"origin": "2"}) == "abcd"

    def test_what_is_written_at_once_never_goes_on_with_another_try(self, tmp_path):
        """Its values may be others."""
        partial = self.start(tmp_path / "x", 2)
        partial.write_bytes(partial.read_bytes()[:-100] + bytes(100))
        write_tensors(tmp_path / "x", self.TENSORS, {})
        assert_equal(load_file(tmp_path / "x"), self.TENSORS)
