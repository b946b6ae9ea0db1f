"""What the environment says to the HTTP service."""

from pathlib import Path
from typing import Annotated

from limits import RateLimitItem, parse
from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SecretStr

from jobs.lease import LEASE_S
from jobs.logs import LogFormat
from jobs.settings import ClientSettings


def _parse_rate(text: object) -> object:
    return parse(text) if isinstance(text, str) else text  # its ValueError says what is wrong


Rate = Annotated[RateLimitItem, BeforeValidator(_parse_rate)]


class ServeSettings(ClientSettings):
    """Variables named in upper case with the prefix H3_."""

    model_config = ClientSettings.model_config | {"arbitrary_types_allowed": True}

    serve_host: str = "127.0.0.1"
    serve_port: int = Field(8000, ge=0, le=65535)
    tokens_file: Path | None = None  # who may use the service; None: whoever can reach this machine's loopback address
    request_limit: Rate = Field(default_factory=lambda: parse("1200/minute"))  # of one token, by each service process
    submit_limit: Rate = Field(default_factory=lambda: parse("60/minute"))  # likewise
    most_open: PositiveInt = 100  # renders of one token that have not ended
    most_streams: PositiveInt = 200  # of events, of one token, by each service process
    most_body_bytes: PositiveInt = 64 << 20  # of a request, pictures and all
    lease_s: PositiveFloat = LEASE_S  # as the workers have it
    log_format: LogFormat = LogFormat.AUTO
    webhook_secret: SecretStr | None = None  # whsec_...; without it nobody is called
    webhook_private: bool = False  # whether webhooks may lead to private addresses
