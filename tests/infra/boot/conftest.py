"""A server of checkpoints, and folders for them."""

import pytest

from tests.infra.boot.file_server import serving_files


@pytest.fixture
def server():
    with serving_files() as server:
        yield server


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder
