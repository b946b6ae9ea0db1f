"""Damaged files, some hundreds of them: each is refused with a plain error, in no time.

What a damage leaves as it was is not looked at, for nobody could see it: other values of the right form, two tensors of
one form that are exchanged, another epsilon. Seeds are fixed; each mutation is seen to change what the files say.
"""

import json
import math
import random
import shutil
import time

import pytest
import torch

from h3.checkpoint import DenoiserFiles
from h3.convert import Target
from h3.errors import CheckpointError, ConfigError
from h3.vae_files import check_audio_vae, check_video_vae
from tests.h3.checkpoint_files import PREFIX, QKV, comfy_tensors, quantise_layers, write_comfy

CPU = torch.device("cpu")
SEEDS = 3
LIMIT_S = 2.0
NO_NUMBERS = [None, "x", [], {}, [3], -1, 0.5, 10**4000, math.nan, math.inf, 2**63, 2**40]
OFFICIAL = {  # of those names, both stand in an official config.json
    "num_refiner_layers": "token_refiner_num_layers",
    "ffn_dim": "ffn_hidden_size",
    "in_channels": "latents_dim",
    "audio_in_channels": "audio_latents_dim",
    "freq_dim": "timestep_input_dim",
    "time_embed_hidden_dim": "time_embed_hidden_size",
    "rope_freq_dim": "rope_inv_freq_len",
}
PINNED = [  # sizes that some tensor has
    *("hidden_size", "num_layers", "num_attention_heads", "attention_head_dim", "text_dim", "time_embed_dim"),
    *("num_refiner_layers", "ffn_dim", "in_channels", "audio_in_channels", "freq_dim", "time_embed_hidden_dim"),
]


def load(path):
    DenoiserFiles.open(path).load(CPU)


@pytest.fixture(scope="module")
def bases(small, tiny, tmp_path_factory):
    """By name: what is copied and damaged, and how it is read."""
    folder = tmp_path_factory.mktemp("bases")
    tensors, markers, _ = quantise_layers(
        comfy_tensors(small.pruned),
        {QKV: "nvfp4", "blocks.0.mlp.fc1": "float8_e4m3fn", "blocks.1.mlp.fc2": "int8_tensorwise"},
    )
    return {
        "official": (small.paths[Target.OFFICIAL], load),
        "diffusers": (small.paths[Target.DIFFUSERS], load),
        "pruned": (small.paths[Target.COMFY_PRUNED], load),
        "nvfp4": (small.paths[Target.COMFY_NVFP4], load),
        "mixed": (write_comfy(folder / "mixed.safetensors", tensors, markers, PREFIX, in_metadata=True), load),
        "video vae": (tiny.video_vae, check_video_vae),
        "audio vae": (tiny.audio_vae, check_audio_vae),
    }


def files_below(path, suffix):
    return sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path]


class Tensors:
    """One .safetensors file, taken apart."""

    def __init__(self, path):
        self.path, content = path, path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        self.text, self.payload = content[8 : 8 + size], content[8 + size :]
        self.entries = json.loads(self.text)
        self.names = [name for name in self.entries if name != "__metadata__"]

    def write(self, text=None, size=None, payload=None):
        text = json.dumps(self.entries).encode() if text is None else text
        text = text.encode() if isinstance(text, str) else text
        size = len(text) if size is None else size
        self.path.write_bytes(size.to_bytes(8, "little") + text + (self.payload if payload is None else payload))


def meaning(path):
    """What the files say, so that another spelling of the same is the same."""
    told = {}
    for file in files_below(path, ""):
        if file.is_file():
            content = file.read_bytes()
            if file.suffix == ".safetensors":
                size = int.from_bytes(content[:8], "little")
                told[file.relative_to(path)] = size, parsed(content[8 : 8 + size]), content[8 + size :]
            else:
                told[file.relative_to(path)] = parsed(content)
    return told


def parsed(text):
    try:
        return json.dumps(json.loads(text.decode(), object_pairs_hook=list))
    except (ValueError, RecursionError):
        return text


# Each takes a generator and a path below which it damages one file.


def drop_tensor(draw, path):
    file = draw_file(draw, path)
    del file.entries[draw.choice(file.names)]
    file.write()


def rename_tensor(draw, path):
    file = draw_file(draw, path)
    name = draw.choice(file.names)
    place = draw.randrange(len(name))
    other = draw.choice(
        [name[:place] + name[place + 1 :], name[:place] + "\u00fc" + name[place:], name.upper(), f"{name}.x"]
    )
    file.entries = {other if each == name else each: entry for each, entry in file.entries.items()}
    file.write()


def double_name(draw, path):
    file = draw_file(draw, path)
    name = draw.choice(file.names)
    entry = file.entries[draw.choice([name, draw.choice(file.names)])]
    file.write(json.dumps(file.entries)[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}")


def change_dtype(draw, path):
    others = ["I16", "F8_E5M2", "BOOL", "I64", "F64", "F4", "bf16", "", None, 3, ["BF16"], {}]
    change_field(draw, path, "dtype", lambda old: draw.choice(others))


def change_shape(draw, path):
    def change(shape):
        place = draw.randrange(len(shape)) if shape else 0
        one_more = [*shape[:place], shape[place] + draw.choice([-1, 1, 128]), *shape[place + 1 :]] if shape else [2]
        other = [*shape[:place], draw.choice(NO_NUMBERS), *shape[place + 1 :]]
        turned = shape[::-1] if len(set(shape)) > 1 else [*shape, 1]
        return draw.choice([one_more, other, turned, [*shape, 1], [1] * 100 + shape, None, "x", 3, {}])

    change_field(draw, path, "shape", change)


def change_offsets(draw, path):
    def change(offsets):
        begin, end = offsets
        moved = draw.choice([-8, -1, 1, 2, 10**6])
        return draw.choice(
            [
                *([begin + moved, end], [begin, end + moved], [begin + moved, end + moved], [end, begin]),
                *([draw.choice(NO_NUMBERS), end], [begin, draw.choice(NO_NUMBERS)], [begin], [begin, end, end]),
                *([-end - 1, -begin - 1], [str(begin), str(end)], [begin, end + 0.0], [False, True], None, begin),
            ]
        )

    change_field(draw, path, "data_offsets", change)


def change_field(draw, path, field, change):
    file = draw_file(draw, path)
    entry = file.entries[draw.choice(file.names)]
    entry[field] = change(entry[field])
    file.write()


def take_anothers_offsets(draw, path):
    file = draw_file(draw, path)
    one, other = draw.sample(file.names, 2)
    file.entries[one] = file.entries[one] | {"data_offsets": file.entries[other]["data_offsets"]}
    file.write()


def drop_field(draw, path):
    file = draw_file(draw, path)
    del file.entries[draw.choice(file.names)][draw.choice(["dtype", "shape", "data_offsets"])]
    file.write()


def replace_entry(draw, path):
    file = draw_file(draw, path)
    file.entries[draw.choice(file.names)] = draw.choice([None, 3, "x", [], {}, True, math.nan])
    file.write()


def nest_entry(draw, path):
    file = draw_file(draw, path)
    depth = draw.choice([10, 500, 900, 990, 1000, 5000, 100_000])
    text = json.dumps(file.entries | {draw.choice(file.names): "HERE"})
    file.write(
        text.replace(
            '"HERE"', draw.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth])
        )
    )


def replace_metadata(draw, path):
    file = draw_file(draw, path)
    file.entries["__metadata__"] = draw.choice([None, 3, "x", [], {"format": 3}, {"format": None}, {"a": {}}])
    file.write()


def replace_byte_of_header(draw, path):
    file = draw_file(draw, path)
    while True:
        text, place = bytearray(file.text), draw.randrange(len(file.text))
        text[place] = draw.choice([*b'09-.,:"{}[]abzAZ ', 0, 0x80, 0xC3, 0xFF])
        try:
            found = json.loads(text.decode())
            if {n: e for n, e in found.items() if n in file.names} == {n: file.entries[n] for n in file.names}:
                continue  # its own metadata, or a space, which mean nothing
        except (ValueError, AttributeError):
            pass
        return file.write(bytes(text))


def cut_header(draw, path):
    file = draw_file(draw, path)
    file.write(file.text.rstrip()[: -draw.randrange(1, 200)])


def write_other_encoding(draw, path):
    file = draw_file(draw, path)
    file.write(json.dumps(file.entries).encode(draw.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-be"])))


def write_other_length(draw, path):
    file = draw_file(draw, path)
    lengths = [0, 1, 2**63, 2**64 - 1, draw.randrange(2**64), draw.randrange(len(file.text)), 101 * 2**20]
    lengths += [len(file.text) + draw.randrange(1, 100), len(file.text) - draw.randrange(1, 100)]
    file.write(file.text, draw.choice(lengths))


def truncate(draw, path):
    file = draw.choice(files_below(path, ".safetensors"))
    content = file.read_bytes()
    file.write_bytes(content[: draw.choice([draw.randrange(len(content)), len(content) - draw.randrange(1, 100)])])


def write_something_else(draw, path):
    others = [b"", b"\0" * 5000, b"<html><body>404 Not Found</body></html>" * 100, b"PK\3\4" + bytes(100)]
    others += [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", draw.randbytes(5000)]
    draw.choice(files_below(path, ".safetensors")).write_bytes(draw.choice(others))


def draw_file(draw, path):
    return Tensors(draw.choice(files_below(path, ".safetensors")))


HEADERS = [
    *(drop_tensor, rename_tensor, double_name, change_dtype, change_shape, change_offsets, take_anothers_offsets),
    *(drop_field, replace_entry, nest_entry, replace_metadata, replace_byte_of_header, cut_header),
    *(write_other_encoding, write_other_length, truncate, write_something_else),
]


def change_marker(draw, path):
    """In its tensor, or in the metadata."""
    file = draw_file(draw, path)
    others = ['{"format": "nvfp5"}', '{"Format": "nvfp4"}', '["format", "nvfp4"]', '"format is nvfp4!!"', "{" * 19]
    others += [
        '{"format": 3333333}',
        "[" * 9 + "1" + "]" * 9,
        '{"format": "nvfp4" ',
        "\u00ff" * 9 + " ",
        '{"format": null   }',
    ]
    other = draw.choice(others)
    marked = [name for name in file.names if name.endswith(".comfy_quant")]
    if marked:
        begin, _ = file.entries[draw.choice(marked)]["data_offsets"]
        assert len(other.encode()) == 19
        file.write(file.text, payload=file.payload[:begin] + other.encode() + file.payload[begin + 19 :])
        return
    marks = json.loads(file.entries["__metadata__"]["_quantization_metadata"])
    layer = draw.choice([*marks["layers"]])
    spoilt = {
        "another format": lambda: marks["layers"].update({layer: {"format": draw.choice(["nvfp5", "", 3, None])}}),
        "no marker": lambda: marks["layers"].update({layer: draw.choice([None, 3, [], {}])}),
        "another layer": lambda: marks["layers"].update({f"{layer}x": marks["layers"].pop(layer)}),
        "layer not marked": lambda: marks["layers"].pop(layer),
        "no layers": lambda: marks.update({"layers": draw.choice([None, [], 3])}),
        "rotated": lambda: marks["layers"].update({layer: {"format": "int8_tensorwise", "convrot": True}}),
    }
    spoilt[draw.choice([*spoilt])]()
    text = json.dumps(marks)
    file.entries["__metadata__"]["_quantization_metadata"] = draw.choice([text, text[:-2], text + "]", "[" * 50_000])
    file.write()


def change_config(draw, path):
    config = path / "config.json"
    fields = json.loads(config.read_text())
    if draw.random() < 0.5:
        name = draw.choice(PINNED)
        other = draw.choice([1, 2, -1, fields[name] * 1000, 10**9])
        set_both(fields, name, fields[name] + other)
    else:
        name = draw.choice([*PINNED, "rope_freq_dim", "rope_theta", "norm_eps", "qk_norm_eps", "final_norm_eps"])
        wrong = [None, "x", [], {}, [3], -1, 10**4000, math.nan, math.inf]
        set_both(fields, name, draw.choice([*wrong, 0.5] if name in PINNED else wrong))
    config.write_text(json.dumps(fields))


def set_both(fields, name, value):
    fields[name] = value
    if OFFICIAL.get(name) in fields:
        fields[OFFICIAL[name]] = value


def drop_from_config(draw, path):
    config = path / "config.json"
    fields = json.loads(config.read_text())
    name = draw.choice(PINNED)
    fields.pop(name)
    fields.pop(OFFICIAL.get(name), None)
    config.write_text(json.dumps(fields))


def change_patch(draw, path):
    config = path / "config.json"
    patch = draw.choice([[1, 2], [1, 2, 2, 1], [2, 2, 2], [1, 1, 1], [], None, 2, "1,2,2", [1, [2], 2], [1, -2, 2]])
    config.write_text(json.dumps(json.loads(config.read_text()) | {"patch_size": patch}))


def spoil_json(draw, path, name="config.json"):
    file = draw.choice([file for file in files_below(path, ".json") if file.name.endswith(name)])
    content = file.read_bytes()
    depth = draw.choice([900, 1000, 5000, 100_000])
    others = [b"", b"null", b"3", b"[]", b"{}", b'"text"', content[: -draw.randrange(2, len(content))], content + b"}"]
    others += [
        b"[" * depth,
        b'{"a":' * depth + b"1" + b"}" * depth,
        b"\xff" + content,
        content.decode().encode("utf-16"),
    ]
    others += [content.replace(b'"', b"'"), b"9" * 5000, b" " * 10_000]
    file.write_bytes(draw.choice(others))


def spoil_index(draw, path):
    spoil_json(draw, path, ".index.json")


def change_index(draw, path):
    (file,) = path.glob("*.index.json")
    index = json.loads(file.read_text())
    shards = index["weight_map"]
    name = draw.choice([*shards])
    other_shard = draw.choice(sorted(set(shards.values()) - {shards[name]}))
    no_shards = [None, 3, "", "..", "/dev/zero", "a" * 5000, "a\0b", "\ud800", "gone.safetensors", other_shard]
    first = {
        "shard": lambda: shards.update({name: draw.choice([*no_shards, f"./{shards[name]}", [], {}])}),
        "name": lambda: shards.update({f"{name}x": shards.pop(name)}),
        "one more": lambda: shards.update({"x": shards[name]}),
        "whole shard": lambda: [shards.pop(each) for each in [*shards] if shards[each] == other_shard],
        "map": lambda: index.update({"weight_map": draw.choice([None, 3, [], "x", [shards], {}])}),
    }
    first[draw.choice([*first])]()
    file.write_text(json.dumps(index))


def exchange_shards(draw, path):
    one, other = draw.sample(files_below(path, ".safetensors"), 2)
    content = one.read_bytes()
    if draw.random() < 0.5:
        one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def lose_shard(draw, path):
    draw.choice(files_below(path, ".safetensors")).unlink()


CASES = [
    *((base, mutate) for base in ("official", "diffusers", "pruned", "nvfp4", "mixed") for mutate in HEADERS),
    *((base, change_marker) for base in ("nvfp4", "mixed") for _ in range(4)),
    *(
        (base, mutate)
        for base in ("official", "diffusers")
        for mutate in [
            *([change_config] * 5),
            *(drop_from_config, change_patch, spoil_json, spoil_json, spoil_index, spoil_index),
            *(change_index, change_index, exchange_shards, lose_shard),
        ]
    ),
    *((base, mutate) for base in ("video vae", "audio vae") for mutate in (*HEADERS, spoil_json, spoil_json)),
]


@pytest.mark.parametrize(
    ("number", "base", "mutate"),
    [pytest.param(i, base, mutate, id=f"{i}-{base}-{mutate.__name__}") for i, (base, mutate) in enumerate(CASES)],
)
@pytest.mark.filterwarnings("error")
def test_a_damaged_checkpoint_is_refused_in_no_time(bases, tmp_path, number, base, mutate):
    source, read = bases[base]
    before = meaning(source)
    for seed in range(SEEDS):
        damaged = tmp_path / str(seed) / source.name
        damaged.parent.mkdir()
        (shutil.copytree if source.is_dir() else shutil.copy)(source, damaged)
        mutate(random.Random(1000 * number + seed), damaged)
        assert meaning(damaged) != before
        started = time.process_time()
        with pytest.raises((CheckpointError, ConfigError)) as refusal:
            read(damaged)
        assert time.process_time() - started < LIMIT_S
        assert str(refusal.value)
        assert len(str(refusal.value)) < 10_000


def test_the_undamaged_ones_are_read(bases):
    for source, read in bases.values():
        read(source)


def test_there_are_hundreds_of_them():
    assert len(CASES) * SEEDS >= 300
