"""The tiny checkpoint, written once for all tests of the model."""

from pathlib import Path

import pytest

from h3.checkpoint import ModelFolder
from h3.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return write_tiny(tmp_path_factory.mktemp("tiny"), seed=0)


@pytest.fixture
def tiny_copy(tmp_path: Path) -> Path:
    """Root of a tiny checkpoint that a test may damage."""
    write_tiny(tmp_path / "damaged", seed=0)
    return tmp_path / "damaged"
