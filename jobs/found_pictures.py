"""The pictures that requests name, as a person or a file calls them: found first, uploaded once all else is right."""

from collections.abc import Iterable
from pathlib import Path

from jobs.pictures import LocatedPicture, locate_picture
from jobs.settings import ClientSettings
from jobs.store import Store, open_store


class FoundPictures:
    """The store is opened for the first of them: who names none needs none."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._found: dict[str, LocatedPicture] = {}  # by key

    def find_key(self, text: str, folder: Path) -> str:
        """What a request calls the picture that is meant. Raises PictureInvalid and StoreUnavailable.

        folder  where paths begin
        """
        self._store = self._store or open_store(self._settings.store_url)
        located = locate_picture(text, folder, self._store)
        self._found[located.key] = located
        return located.key

    def upload(self, keys: Iterable[str | None]) -> None:
        """Those of these keys that were found here.

        Raises StoreUnavailable, and PictureInvalid for one that has changed since.
        """
        for key in dict.fromkeys(keys):
            if self._store is not None and key in self._found:
                self._found[key].put(self._store)
