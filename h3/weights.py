"""Brings stored tensors into a module, one at a time: what is expected is compared with what lies there first.

A family of files says by `Recipe`s how each of the module's tensors is made of stored ones; this file knows no family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from h3.errors import CheckpointError
from h3.tensor_file import StoredTensor, TensorReader


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor as a recipe expects it."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]

    def check(self, found: StoredTensor) -> None:
        """Raises CheckpointError naming file, tensor, what was found and what was expected."""
        if found.form.shape != self.shape or found.form.dtype not in self.dtypes:
            dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            raise CheckpointError(f"{found.path}: {self.name} is {found.form}, expected {list(self.shape)} {dtypes}")


def only(parts: list[Tensor]) -> Tensor:
    """The one stored tensor that a tensor of the module is made of."""
    (part,) = parts
    return part


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one tensor of a module is made of stored ones. What comes out is cast to the module's dtype."""

    parts: tuple[Part, ...]
    build: Callable[[list[Tensor]], Tensor] = only

    def then(self, change: Callable[[Tensor], Tensor]) -> "Recipe":
        """The same, and one step more."""
        return Recipe(self.parts, lambda found: change(self.build(found)))

    def read(self, stored: Mapping[str, StoredTensor], reader: TensorReader) -> Tensor:
        """The tensor, on the reader's device."""
        return self.build([reader.read(stored[part.name]) for part in self.parts])


def check_recipes(
    recipes: Mapping[str, Recipe],
    stored: Mapping[str, StoredTensor],
    where: Path,
    ignored: frozenset[str] = frozenset(),
) -> None:
    """Every part is there in its form, and nothing else is but `ignored`. Raises CheckpointError naming the first."""
    parts = {part.name: part for recipe in recipes.values() for part in recipe.parts}
    if missing := sorted(parts.keys() - stored.keys()):
        raise CheckpointError(f"{where} lacks tensor {missing[0]} (and {len(missing) - 1} more)")
    if unknown := sorted(stored.keys() - parts.keys() - ignored):
        raise CheckpointError(
            f"{where} holds tensor {unknown[0]} (and {len(unknown) - 1} more) that H3 has no place for"
        )
    for name, part in parts.items():
        part.check(stored[name])


def fill(
    module: nn.Module,
    recipes: Mapping[str, Recipe],
    stored: Mapping[str, StoredTensor],
    device: torch.device,
    settle: Callable[[str], object] = lambda _: None,
) -> None:
    """Give every parameter and buffer that a recipe names its values, on the device, in the module's dtype.

    The module may lie on `meta`. Read in file order: host memory holds the tensors of one recipe at a time.
    settle  gets the name of each that has its values
    """

    def place(item: tuple[str, Recipe]) -> tuple[Path, int]:
        first = stored[item[1].parts[0].name]
        return first.path, first.begin

    with TensorReader(device) as reader:
        for name, recipe in sorted(recipes.items(), key=place):
            put(module, name, recipe.read(stored, reader))
            settle(name)


def put(module: nn.Module, name: str, values: Tensor) -> None:
    """Replace one parameter or buffer, keeping its dtype."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    old = getattr(owner, leaf)
    assert old.shape == values.shape, f"{name}: {values.shape}, expected {old.shape}"
    values = values.to(old.dtype)
    setattr(owner, leaf, nn.Parameter(values, requires_grad=False) if isinstance(old, nn.Parameter) else values)
