"""This user's own folders, where things lie that nobody has named another place for."""

import os
from pathlib import Path


def default_store_url() -> str:
    """Where renders lie when no store is named: a folder of this user."""
    return (user_folder("XDG_DATA_HOME", ".local/share") / "h3render" / "renders").as_uri()


def default_cache_dir() -> Path:
    return user_folder("XDG_CACHE_HOME", ".cache") / "h3render"


def user_folder(variable: str, fallback: str) -> Path:
    """A base directory of this user. A relative one is ignored, as the XDG specification says."""
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / fallback
