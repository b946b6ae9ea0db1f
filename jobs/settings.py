"""What the environment says to clients. Read once, by the command line or by the program that embeds a client."""

from pathlib import Path
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.errors import SettingsInvalid
from jobs.folders import default_store_url


class ClientSettings(BaseSettings):
    """Variables named in upper case with the prefix H3_, unless an alias is given."""

    model_config = SettingsConfigDict(
        env_prefix="H3_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    # A URL may hold a password, so it is never shown whole.
    redis_url: SecretStr | None = Field(None, validation_alias="REDIS_URL")  # else the embedded server
    store_url: str = Field(default_factory=default_store_url)  # file:///folder or s3://bucket/prefix
    state_dir: Path | None = None  # of the embedded server; else $XDG_STATE_HOME, else ~/.local/state
    runtime_dir: Path | None = None  # of the embedded server's socket; else /tmp/h3render-UID

    @property
    def names_store(self) -> bool:
        """Whether somebody has named a store: the default is this machine's own."""
        return "store_url" in self.model_fields_set


Settings = TypeVar("Settings", bound=ClientSettings)


def read_settings(kind: type[Settings], **given: object) -> Settings:
    """The environment's settings, overridden by what is given and not None. Raises SettingsInvalid."""
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as exc:
        lines = [f"{_variable(kind, e['loc'])} {e['input']!r}: {e['msg'].lower()}" for e in exc.errors()]
        raise SettingsInvalid("\n".join(lines)) from exc


def _variable(kind: type[ClientSettings], location: tuple[int | str, ...]) -> str:
    """What a person calls a setting: its variable in the environment."""
    name = str(location[0])
    return name if name.isupper() else f"{kind.model_config['env_prefix']}{name}".upper()
