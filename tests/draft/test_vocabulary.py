import pytest
import torch

from eyas.draft.vocabulary import choose, coverage, from_mappings, to_mappings
from eyas.errors import EyasError


def test_most_frequent_in_ascending_order() -> None:
    counts = torch.tensor([0, 5, 1, 0, 9, 1])
    assert choose(counts, 3).tolist() == [1, 2, 4]  # a tie goes to the lower id
    assert choose(counts, 5).tolist() == [0, 1, 2, 4, 5]  # unseen ids fill up from the lowest
    assert choose(counts, 6).tolist() == list(range(6))
    assert coverage(counts, choose(counts, 2)) == pytest.approx(14 / 16)


def test_mappings_are_offsets_and_come_back() -> None:
    ids = torch.tensor([1, 2, 4])
    d2t, t2d = to_mappings(ids, 6)
    assert (d2t.tolist(), t2d.tolist()) == ([1, 1, 2], [False, True, True, False, True, False])
    assert from_mappings(d2t, t2d, "here").tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        pytest.param([4, 0, 0], [0, 1, 1, 0, 1, 0], "ascending", id="unsorted"),
        pytest.param([1, 0, 2], [0, 1, 0, 0, 1, 0], "ascending", id="twice"),
        pytest.param([1, 1, 9], [0, 1, 1, 0, 1, 0], "ascending", id="outside"),
        pytest.param([1, 1, 2], [0, 1, 1, 1, 0, 0], "different tokens", id="other-tokens"),
        pytest.param([1, 1, 2], [0, 1, 1, 1, 1, 0], "different tokens", id="other-count"),
    ],
)
def test_a_pair_that_is_none_is_refused(d2t: list[int], t2d: list[int], message: str) -> None:
    with pytest.raises(EyasError, match=message):
        from_mappings(torch.tensor(d2t), torch.tensor(t2d).bool(), "here")
