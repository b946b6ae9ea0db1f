"""What is no JSON file of a checkpoint is named with what to do."""

import pytest

from h3.errors import CheckpointError
from h3.json_file import read_object


def test_an_object_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"name": "drachen-größe", "sizes": [1, 2.5, null]}', encoding="utf-8")
    assert read_object(path) == {"name": "drachen-größe", "sizes": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        ('{"a": 1}'.encode("utf-16"), "is not JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "is not JSON"),  # a byte order mark
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
    ],
)
def test_what_is_no_object_in_utf8_is_named(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        read_object(path)
    assert str(refused.value).startswith(f"{path} {said}")
    assert str(refused.value).endswith("fetch it again")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.json is missing: fetch it again"):
        read_object(tmp_path / "gone.json")


def test_a_folder_in_its_place_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be read \(Is a directory\): make it a file"):
        read_object(tmp_path)
