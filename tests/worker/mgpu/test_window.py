"""The arithmetic of back-pressure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.mgpu.window import Window

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=60)


def test_an_empty_window_takes_an_item_of_any_size() -> None:
    """39, 58: or a large yield could never leave."""
    window = Window(limit_bytes=10)
    assert window.must_be_read() is None
    window.sent(0, 1 << 40)
    assert window.must_be_read() == 0
    window.read_up_to(0)
    assert window.must_be_read() is None


@given(sizes=SIZES, limit=st.integers(1, 20_000))
def test_reading_what_is_waited_for_frees_half_of_the_room(sizes: list[int], limit: int) -> None:
    """39: and what lies unread never exceeds the limit by more than the last item."""
    window = Window(limit)
    for sequence, size in enumerate(sizes):
        if (wanted := window.must_be_read()) is not None:
            assert window.first_unread <= wanted < sequence
            window.read_up_to(wanted)
            assert window.unread_bytes <= limit // 2
        before = window.unread_bytes
        window.sent(sequence, size)
        assert before < limit
    window.read_up_to(len(sizes) - 1)
    assert window.unread_bytes == 0
