"""Who may use the service: a file of bearer tokens, of which only digests are kept in memory."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import SettingsInvalid

SHORTEST_TOKEN = 20  # letters; openssl rand -hex 32 gives 64
OPERATOR = "operator"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file. A name may have several: an old one and its successor."""

    name: str
    digest: bytes
    sees_all: bool  # everybody's jobs, and the farm's batches


class Tokens:
    """All tokens."""

    def __init__(self, tokens: Mapping[bytes, Token]) -> None:
        self._by_digest = tokens

    def find(self, token: str) -> Token | None:
        """By its digest, so that the time of a look-up tells nothing of the tokens."""
        return self._by_digest.get(digest_of(token))

    def named(self, name: str) -> Iterator[Token]:
        return (token for token in self._by_digest.values() if token.name == name)


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> Tokens:
    """Lines of `NAME TOKEN`, with `operator` after those that see all jobs; `#` begins a comment.

    Raises SettingsInvalid, naming the line and never the token.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsInvalid(f"H3_TOKENS_FILE {path} cannot be read ({exc}): give lines of NAME TOKEN") from exc
    tokens = [_parse(f"{path}:{number}", words) for number, line in enumerate(lines, 1) if (words := _words(line))]
    if not tokens:
        raise SettingsInvalid(f"H3_TOKENS_FILE {path} has no token: write lines of NAME TOKEN")
    by_digest = {token.digest: token for token in tokens}
    if len(by_digest) < len(tokens):
        raise SettingsInvalid(f"H3_TOKENS_FILE {path} has the same token twice: give each line one of its own")
    return Tokens(by_digest)


def _words(line: str) -> list[str]:
    return line.partition("#")[0].split()


def _parse(where: str, words: list[str]) -> Token:
    match words:
        case [name, token] | [name, token, "operator"] if _NAME.fullmatch(name):
            if len(token) < SHORTEST_TOKEN:
                raise SettingsInvalid(
                    f"{where}: the token of {name} has {len(token)} letters, and could be guessed: write at least "
                    f"{SHORTEST_TOKEN}, say of openssl rand -hex 32"
                )
            return Token(name, digest_of(token), sees_all=words[-1] == OPERATOR and len(words) == 3)
    raise SettingsInvalid(
        f"{where}: write NAME TOKEN, and `operator` after that for one that sees all jobs; a name has letters, "
        "digits, . _ @ -"
    )
