"""The files that a pod's worker needs: names, sizes, digests, and where they come from."""

from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from infra.boot.errors import Unfit


def _check_name(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or not path.parts or any(part.startswith(".") for part in path.parts) or "\\" in text:
        raise ValueError("a path inside the folder of models, such as transformer/model.safetensors, none hidden")
    return str(path)


def check_url(text: str) -> str:
    """Raises ValueError, without the text: its query may be a signature."""
    try:
        parts = urlsplit(text)
        is_here = parts.scheme == "http" and ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_here = False
    if not (is_here or (text.startswith("https://") and urlsplit(text).hostname)):
        raise ValueError("an https:// URL; for s3:// a signed one")
    return text


class CheckpointFile(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_check_name)]
    url: Annotated[str, AfterValidator(check_url), Field(repr=False)]
    size_bytes: PositiveInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @property
    def place(self) -> str:
        """Where it comes from, without what may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{parts.path}"


_MANIFEST = TypeAdapter(list[CheckpointFile])


def read_manifest(text: str) -> list[CheckpointFile]:
    """A JSON list, or the path of a file that holds one. Raises Unfit, without the text."""
    is_inline = text.lstrip().startswith("[")
    place = "H3_POD_CHECKPOINTS" if is_inline else f"H3_POD_CHECKPOINTS {text}"
    try:
        files = _MANIFEST.validate_json(text if is_inline else Path(text).read_bytes())
    except OSError as exc:
        raise Unfit(f"{place}: {exc.strerror or exc}: write a list in JSON, or name the file of one") from exc
    except ValidationError as exc:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in exc.errors()]
        raise Unfit(f"{place}: no list of name, url, size_bytes, sha256: {'; '.join(problems[:5])}") from None
    if len({file.name for file in files}) < len(files):
        raise Unfit(f"{place}: one name is there twice")
    return files
