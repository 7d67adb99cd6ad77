"""The draft vocabulary: the tokens the verifier writes most often, in ascending order of their ids.

In a draft's file it is the pair `d2t` (int64 [D]: verifier id minus draft id) and `t2d` (bool [V]), as vLLM reads them.
Shapes: V verifier vocabulary, D draft vocabulary.
"""

import torch
from torch import Tensor

from eyas.errors import EyasError


def choose(counts_V: Tensor, size: int) -> Tensor:
    """The `size` most frequent ids, ascending [D]; ties go to lower ids, and unseen ids fill up from the lowest."""
    order_V = torch.sort(counts_V, descending=True, stable=True).indices
    return order_V[:size].sort().values


def coverage(counts_V: Tensor, ids_D: Tensor) -> float:
    """Share of the verifier's tokens that the draft vocabulary can express."""
    return float(counts_V[ids_D].sum() / counts_V.sum())


def to_mappings(ids_D: Tensor, verifier_vocab_size: int) -> tuple[Tensor, Tensor]:
    """(d2t, t2d) of a vocabulary."""
    t2d_V = torch.zeros(verifier_vocab_size, dtype=torch.bool)
    t2d_V[ids_D] = True
    return ids_D - torch.arange(len(ids_D)), t2d_V


def from_mappings(d2t_D: Tensor, t2d_V: Tensor, where: str) -> Tensor:
    """The vocabulary of a (d2t, t2d) pair.

    Raises:
        EyasError: a pair that isn't one: unsorted, or the two disagree. Such a draft decodes to wrong tokens without an error.
    """
    ids_D = d2t_D.long() + torch.arange(len(d2t_D))
    if (ids_D.diff() <= 0).any() or not ((ids_D >= 0) & (ids_D < len(t2d_V))).all():
        raise EyasError(f"{where}: d2t does not list distinct tokens in ascending order")
    if not torch.equal(t2d_V.bool().nonzero()[:, 0], ids_D):
        raise EyasError(f"{where}: d2t and t2d name different tokens ({len(ids_D)} and {int(t2d_V.sum())})")
    return ids_D
