import pytest

from h3.errors import PartitionError
from h3.partition import split_evenly


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        (2, (28, 28)),
        (4, (14, 14, 14, 14)),
        (6, (10, 10, 9, 9, 9, 9)),
        (8, (7,) * 8),
    ],
)
def test_the_56_heads_are_owned_as_the_contract_says(ranks, sizes):
    assert split_evenly(56, ranks, what="heads").sizes == sizes


@pytest.mark.parametrize("total", [9, 17, 640, 17_780])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_shares_cover_everything_once_and_differ_by_at_most_one(total, ranks):
    partition = split_evenly(total, ranks, what="tokens")
    covered = [item for rank in range(ranks) for item in range(total)[partition.owned(rank)]]
    assert covered == list(range(total))
    assert max(partition.sizes) - min(partition.sizes) <= 1


def test_a_rank_without_a_head_is_refused_with_the_numbers():
    with pytest.raises(PartitionError, match="5 attention heads cannot be split over 6 ranks"):
        split_evenly(5, 6, what="attention heads")
