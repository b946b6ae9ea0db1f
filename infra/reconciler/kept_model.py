"""The base of what is kept in Redis, as JSON, from one look to the next."""

from pydantic import BaseModel, ConfigDict


class Kept(BaseModel):
    """Every change is a new one. A newer reconciler may have written more."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)
