"""What attempts at a job have put into the store, for the next attempt to go on from and for the result to name."""

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredPiece(_Record):
    """One object, as it lies in the store."""

    key: str  # relative to the store's root
    size_bytes: int
    sha256: str


class KeptCheckpoint(_Record):
    step: int  # 1-based, the last one that is done
    piece: StoredPiece


class KeptSegment(_Record):
    piece: StoredPiece
    duration_s: float


class KeptPieces(_Record):
    """Pieces never change once they are written. All are of one render, which later attempts go on with."""

    checkpoint: KeptCheckpoint | None = None
    header: StoredPiece | None = None  # of the segments
    segments: tuple[KeptSegment, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """What the queue says; nothing if it is not what we write there."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return cls()

    def with_checkpoint(self, checkpoint: KeptCheckpoint) -> Self:
        """With the next one; if it is no later one, its attempt has begun anew, and the rest is of another render."""
        if self.checkpoint is not None and checkpoint.step <= self.checkpoint.step:
            return type(self)(checkpoint=checkpoint)
        return self.model_copy(update={"checkpoint": checkpoint})

    def stream(self) -> list[StoredPiece]:
        """What a player needs, in its order."""
        return [] if self.header is None else [self.header, *(segment.piece for segment in self.segments)]

    def pieces(self) -> list[StoredPiece]:
        """All of them."""
        return self.stream() if self.checkpoint is None else [self.checkpoint.piece, *self.stream()]

    @property
    def mark(self) -> int:
        """Grows with what need not be done again, as long as no attempt begins anew."""
        return (self.checkpoint.step if self.checkpoint else 0) + len(self.segments)
