"""The pictures that the rows of a batch name: found before anything is queued, and then uploaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.batch.record import PlannedRow
from jobs.errors import PictureInvalid
from jobs.pictures import LocatedPicture, locate_picture
from jobs.settings import ClientSettings
from jobs.store import Store, open_store

PICTURE_FIELDS = ("first_frame", "last_frame")


class Pictures:
    """Those that rows name, and those that options name for all of them. The store is opened for the first."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._found: dict[str, LocatedPicture] = {}  # by key

    def replace_paths(self, defaults: Mapping[str, object]) -> dict[str, object]:
        """With keys in place of pictures, whose paths begin where the command was given. Raises PictureInvalid."""
        keys = dict(defaults)
        for field in PICTURE_FIELDS:
            if isinstance(text := defaults.get(field), str):
                try:
                    keys[field] = self.find_key(text, Path())
                except PictureInvalid as exc:
                    raise PictureInvalid(f"every shot, field {field}: {exc}") from exc
        return keys

    def find_key(self, text: str, folder: Path) -> str:
        """Raises PictureInvalid. `folder`: where paths begin."""
        self._store = self._store or open_store(self._settings.store_url)
        located = locate_picture(text, folder, self._store)
        self._found[located.key] = located
        return located.key

    def upload(self, rows: Sequence[PlannedRow]) -> None:
        """What rows need that are not queued yet. Raises StoreUnavailable."""
        new = [row.shot.request for row in rows if not row.known_job]
        needed = dict.fromkeys(key for request in new for key in (request.first_frame, request.last_frame))
        for key in needed:
            if self._store is not None and key in self._found:
                self._found[key].put(self._store)
