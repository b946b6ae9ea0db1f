"""safetensors files as they lie on disk: checked headers, streamed reads, resumable writes. Knows no model.

A file is checked from its header before anything of it is used: a tensor that overlaps another, leaves a hole, has
another size than its shape and dtype, or ends behind the file, is named. Bytes after the last tensor are tolerated
with a warning, for published copies have them, and strict readers refuse such files. Tensors are read one at a time
straight to their device, so that host memory never holds more than one.
Source: the safetensors format, https://huggingface.co/docs/safetensors.
"""

import itertools
import json
import logging
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeGuard

import torch
from torch import Tensor

from h3.errors import CheckpointError

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_INDEX_SUFFIX = ".safetensors.index.json"
_LENGTH_BYTES = 8  # the header's length, little endian, opens the file
_LARGEST_HEADER = 100 * 2**20  # bytes; the format's own limit
_LARGEST_SIZE = 2**62  # bytes or values; torch can count so far
_MOST_DIMS = 16  # numpy and torch can hold more, H3 has 5 at most
_PEEK_BYTES = 64
_LONGEST_NAME = 255  # of a file, in bytes
_STAGING_BYTES = 64 * 2**20
_STAGES = 2  # of pinned memory, so large each: one part is read while another travels to the GPU
_THREADS = 4
_WORTH_SHARING = 1 << 22  # bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a tensor is, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes lie in its file."""

    path: Path
    form: TensorForm
    begin: int  # from the start of the file
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says that it holds; checked against the file's size."""

    tensors: dict[str, StoredTensor]  # in the order of their bytes
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """The tensors of one safetensors file, all of them whole.

    Raises CheckpointError naming the file and, where there is one, the tensor, what was found and what was expected.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is {'no file' if path.exists() else 'missing: fetch it again'}")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(size - _LENGTH_BYTES, _LARGEST_HEADER):
            raise CheckpointError(f"{path} ({size} bytes) is no safetensors file or ends in its header: fetch it again")
        entries = _parse_header(path, file.read(length))
        metadata = _parse_metadata(path, entries.pop("__metadata__", {}))
        payload = _LENGTH_BYTES + length
        found = [_locate(path, name, entry, payload) for name, entry in entries.items()]
        tensors = dict(sorted(found, key=lambda item: (item[1].begin, item[1].end)))
        end = _check_layout(path, tensors, payload, size)
        if end < size:
            _tolerate_rest(path, file.read(min(size - end, _PEEK_BYTES)), size - end)
    return Header(tensors, metadata)


def _parse_header(path: Path, header: bytes) -> dict[str, object]:
    try:
        # Decoded here, for of bytes json would guess the encoding.
        entries = json.loads(header.decode(), object_pairs_hook=_refuse_doubles)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} has a header that is not safetensors ({exc}): fetch it again") from exc
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path} has a header that is not safetensors (no object): fetch it again")
    return entries


def _refuse_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries: dict[str, object] = {}
    for name, entry in pairs:
        if name in entries:
            raise ValueError(f"{name!r} stands there twice")
        entries[name] = entry
    return entries


def _parse_metadata(path: Path, metadata: object) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise CheckpointError(f"{path}: __metadata__ is not a table of texts: fetch it again")


def _locate(path: Path, name: str, entry: object, payload: int) -> tuple[str, StoredTensor]:
    """Read one entry of a header. Raises CheckpointError if it contradicts itself."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            _is_shape(shape) and _are_sizes([begin, end]) and begin <= end
        ):
            if dtype not in DTYPES:
                raise CheckpointError(f"{path}: {name} has dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
            form = TensorForm(DTYPES[dtype], tuple(shape))
            if form.size_bytes != end - begin:
                raise CheckpointError(
                    f"{path}: {name} is {form}, which is {form.size_bytes} bytes, but {end - begin} are given to it"
                )
            return name, StoredTensor(path, form, payload + begin, payload + end)
    raise CheckpointError(f"{path}: the header's entry of {name} is not safetensors: fetch it again")


def _are_sizes(numbers: list[object]) -> TypeGuard[list[int]]:
    return all(type(number) is int and 0 <= number <= _LARGEST_SIZE for number in numbers)


def _is_shape(sizes: list[object]) -> bool:
    """Whether torch can make a tensor of that shape."""
    if len(sizes) > _MOST_DIMS or not _are_sizes(sizes):
        return False
    return math.prod(max(1, size) for size in sizes) <= _LARGEST_SIZE


def _check_layout(path: Path, tensors: dict[str, StoredTensor], payload: int, size: int) -> int:
    """Tensors follow each other without gap or overlap and end within the file. Returns where."""
    expected = payload
    for name, tensor in tensors.items():
        if tensor.begin != expected:
            raise CheckpointError(
                f"{path}: {name} begins at byte {tensor.begin}, expected {expected}: the file is damaged or padded"
            )
        if tensor.end > size:
            raise CheckpointError(
                f"{path} is cut short in tensor {name}, which ends at byte {tensor.end} of {size}: fetch it again"
            )
        expected = tensor.end
    return expected


def _tolerate_rest(path: Path, payload: bytes, rest: int) -> None:
    """Warn of bytes behind the last tensor. `payload` is how the first tensor begins."""
    # Headers are padded with spaces. If the length leaves some of them out, every tensor would be read shifted.
    if not payload.strip(b" "):
        raise CheckpointError(f"{path} has a header that is longer than the file says: fetch it again")
    log.warning("%s has %d bytes after its last tensor; they are ignored", path, rest)


class TensorReader:
    """Reads stored tensors to one device, in parts where that is a GPU. Close it to free its staging memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._turns = itertools.cycle(range(_STAGES))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        self._staging.clear()  # torch keeps what is still copied from

    def read(self, stored: StoredTensor) -> Tensor:
        """The whole tensor, on the device, whose stream may still be copying it.

        Raises CheckpointError if the file has changed since its header was read.
        """
        target = torch.empty(stored.end - stored.begin, dtype=torch.uint8, device=self._device)
        with stored.path.open("rb", buffering=0) as file:
            if self._device.type == "cuda":
                self._read_in_parts(file.fileno(), stored, target)
            else:
                self._read_part(file.fileno(), stored, stored.begin, target)
        return target.view(stored.form.dtype).view(stored.form.shape)

    def _read_in_parts(self, file: int, stored: StoredTensor, target: Tensor) -> None:
        if not self._staging:
            self._staging = [torch.empty(_STAGING_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_STAGES)]
            self._copied = [torch.cuda.Event() for _ in range(_STAGES)]
        offset = stored.begin
        for part in target.split(_STAGING_BYTES):
            turn = next(self._turns)
            staging, copied = self._staging[turn][: len(part)], self._copied[turn]
            copied.synchronize()  # its last part has left
            self._read_part(file, stored, offset, staging)
            part.copy_(staging, non_blocking=True)
            copied.record()
            offset += len(part)

    def _read_part(self, file: int, stored: StoredTensor, offset: int, target: Tensor) -> None:
        """From there on, in several threads where it is large: one alone copies a few GB/s out of the page cache."""
        if target.nbytes < _WORTH_SHARING:
            _read_exactly(file, stored, offset, target)
            return
        pieces = target.tensor_split(_THREADS)
        offsets = itertools.accumulate((len(piece) for piece in pieces[:-1]), initial=offset)
        reading = [
            self._threads.submit(_read_exactly, file, stored, place, piece)
            for place, piece in zip(offsets, pieces, strict=True)
        ]
        wait(reading)  # all, before one of them is heard: the file must stay open
        for done in reading:
            done.result()


def _read_exactly(file: int, stored: StoredTensor, offset: int, target: Tensor) -> None:
    view = memoryview(target.numpy().data)
    while view:
        count = os.preadv(file, [view], offset)
        if not count:
            raise CheckpointError(f"{stored.path} has become shorter while it was read: fetch it again")
        view, offset = view[count:], offset + count


class TensorWriter:
    """Writes one safetensors file tensor by tensor, in the order of `forms`; goes on where an earlier try ended.

    The file has its name only when it is whole; until then it is `NAME.partial`, and what is missing there is what
    `remaining` tells. An earlier try is one with the same header, so whoever resumes has `metadata` say whose values
    these are; whoever does not says so by `resume`, and is spared a sync after each tensor.
    """

    def __init__(
        self, path: Path, forms: Mapping[str, TensorForm], metadata: Mapping[str, str], *, resume: bool
    ) -> None:
        self._path, self._forms, self._resume = path, dict(forms), resume
        self._partial = path.with_name(path.name + ".partial")
        if not resume:
            self._partial.unlink(missing_ok=True)
        header = _encode_header(self._forms, metadata)
        self._file = self._partial.open("r+b" if self._partial.exists() else "w+b")
        if self._file.read(len(header)) != header:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(header)
        size, end = self._partial.stat().st_size, len(header)
        self._written = 0
        for form in self._forms.values():
            if end + form.size_bytes > size:
                break
            end += form.size_bytes
            self._written += 1
        self._file.truncate(end)
        self._file.seek(end)

    @property
    def remaining(self) -> list[str]:
        """Names that are still to be written, in order."""
        return list(self._forms)[self._written :]

    def write(self, tensor: Tensor) -> None:
        """The next of `remaining`, from any device."""
        name = self.remaining[0]
        form = TensorForm(tensor.dtype, tuple(tensor.shape))
        assert form == self._forms[name], f"{name} is {form}, announced as {self._forms[name]}"
        for part in tensor.detach().contiguous().view(-1).view(torch.uint8).split(_STAGING_BYTES):
            self._file.write(memoryview(part.cpu().numpy()))
        if self._resume:
            self._sync()  # a later try counts what lies there by the file's size
        self._written += 1

    def finish(self) -> None:
        """Give the whole file its name."""
        assert not self.remaining, self.remaining[0]
        self._sync()
        self._file.close()
        self._partial.rename(self._path)

    def _sync(self) -> None:
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _encode_header(forms: Mapping[str, TensorForm], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, form in forms.items():
        end = begin + form.size_bytes
        entries[name] = {"dtype": _NAMES[form.dtype], "shape": list(form.shape), "data_offsets": [begin, end]}
        begin = end
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors begin at a multiple of 8, as the format's own writer has it
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """All at once, as one whole file."""
    forms = {name: TensorForm(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    with TensorWriter(path, forms, metadata, resume=False) as writer:
        for name in writer.remaining:
            writer.write(tensors[name])
        writer.finish()


def find_tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file, or of a folder: one file, or shards checked against their index. Reads headers only.

    Raises CheckpointError naming the shard and tensor that is missing or cut short.
    """
    if path.is_file():
        return read_header(path).tensors
    indices, files = sorted(path.glob(f"*{_INDEX_SUFFIX}")), sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return _read_shards(indices[0])
    if not indices and len(files) == 1:
        return read_header(files[0]).tensors
    if not indices and not files:
        raise CheckpointError(f"{path} holds no *.safetensors: is it the folder of a checkpoint?")
    names = ", ".join(file.name for file in indices or files)
    raise CheckpointError(f"{path} holds {names}: which one is meant? Name the file, or leave one index there")


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    shards = _read_index(index)
    for name, shard in shards.items():
        if Path(shard).name != shard or len(shard.encode(errors="replace")) > _LONGEST_NAME:
            raise CheckpointError(f"{index}: {shard!r}, which is to hold tensor {name}, is no name of a file beside it")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index.parent / shard} is missing, which holds tensor {name}: fetch it again")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(shards.values())):
        found = read_header(index.parent / shard).tensors
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{index.parent / shard} holds tensor {twice[0]}, as does {tensors[twice[0]].path}")
        tensors |= found
    for name, shard in shards.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise CheckpointError(
                f"{index.parent / shard} lacks tensor {name}, which {index.name} lists: fetch it again"
            )
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard file name."""
    try:
        match json.loads(path.read_bytes().decode(), object_pairs_hook=_refuse_doubles):
            case {"weight_map": dict(shards)} if all(isinstance(shard, str) for shard in shards.values()):
                return shards
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not an index of shards ({exc}): fetch it again") from exc
    raise CheckpointError(f"{path} is not an index of shards (it has no weight_map): fetch it again")
