"""Reads the JSON files of a checkpoint. Knows nothing of what they say."""

import json
from pathlib import Path

from h3.errors import CheckpointError


def read_object(path: Path) -> dict[str, object]:
    """The object in a JSON file, in UTF-8. Raises CheckpointError naming the file if there is none."""
    try:
        fields = json.loads(path.read_bytes().decode())  # of bytes, it would guess at the encoding
    except FileNotFoundError as exc:
        raise CheckpointError(f"{path} is missing: fetch it again") from exc
    except OSError as exc:
        raise CheckpointError(
            f"{path} cannot be read ({exc.strerror}): make it a file that this user may read"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not JSON ({exc}): fetch it again") from exc
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} is not a JSON object: fetch it again")
    return fields
