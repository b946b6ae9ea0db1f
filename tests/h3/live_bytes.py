"""Counts the memory that operations take, on any device; on `meta`, also what no machine has."""

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is entered: `peak`, the most bytes that were alive at once of what operations gave since then.

    What was there before does not count, nor does what an operation uses within itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[int, tuple[StorageWeakRef, int]] = {}  # of storages, by their address

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._note((args, kwargs), counts=False)
        out = func(*args, **(kwargs or {}))
        self._note(out, counts=True)
        return out

    def _note(self, tensors: object, *, counts: bool) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                known = self._sizes.get(storage._cdata)
                if known is None or known[0].expired():  # the address may be another storage's by now
                    self._sizes[storage._cdata] = StorageWeakRef(storage), counts * storage.nbytes()
        self._sizes = {address: entry for address, entry in self._sizes.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._sizes.values()))
