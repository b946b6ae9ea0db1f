"""Server-sent events, as far as the service uses them: a browser's parser is more than is needed here."""

import json
from collections.abc import AsyncIterator

from tools.bench_service.measured import Told

END = b"\n\n"  # of an event


async def read_told(pieces: AsyncIterator[bytes]) -> AsyncIterator[Told]:
    """The events of a stream, without its comments."""
    rest = b""
    async for piece in pieces:
        *blocks, rest = (rest + piece).split(END)
        for block in blocks:
            if block.startswith(b"id: "):
                yield parse(block)


def parse(block: bytes) -> Told:
    """One whose data belie its id or its name is another event than any that was told."""
    fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
    told, data = Told(fields["id"], fields["event"]), json.loads(fields["data"])
    is_true = (data["id"], data["kind"]) == (told.id, told.kind)
    return told if is_true else Told(told.id, f"{told.kind}, with other data")
