"""What attempts have kept, as the next one reads it."""

from jobs.pieces import KeptCheckpoint, KeptPieces, KeptSegment, StoredPiece


def piece(name):
    return StoredPiece(key=f"job/attempts/1/{name}", size_bytes=1, sha256="00")


KEPT = KeptPieces(
    checkpoint=KeptCheckpoint(step=4, piece=piece("checkpoint-0004.safetensors")),
    header=piece("init.mp4"),
    segments=(KeptSegment(piece=piece("segment-00000.m4s"), duration_s=0.7),),
)


def test_a_later_checkpoint_replaces_the_one_before():
    later = KeptCheckpoint(step=5, piece=piece("checkpoint-0005.safetensors"))
    assert KEPT.with_checkpoint(later) == KEPT.model_copy(update={"checkpoint": later})


def test_a_checkpoint_that_is_not_later_is_of_another_render():
    """Else the clips of one render would be joined to the latents of another."""
    earlier = KeptCheckpoint(step=4, piece=piece("checkpoint-0004.safetensors"))
    assert KEPT.with_checkpoint(earlier) == KeptPieces(checkpoint=earlier)


def test_what_is_not_ours_to_read_is_nothing():
    assert KeptPieces.parse("rubbish") == KeptPieces.parse("{}") == KeptPieces()
    assert KeptPieces.parse(KEPT.model_dump_json()) == KEPT
