"""Memory that is counted from creation to end."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from eyas.plan.ledger import Ledger

KILO = 256
"""Float32 values in a kilobyte."""


def test_a_tensor_counts_while_it_lives_and_its_views_count_nothing() -> None:
    with FakeTensorMode(), Ledger() as ledger:
        with ledger.during("first", "kept"):
            kept = torch.empty(KILO)
            views = [kept.view(2, -1), kept[:3]]
        with ledger.during("second", "gone"):
            gone = torch.empty(2 * KILO)
            del gone
            again = torch.empty(KILO)
        peak = ledger.peak()
        del kept, again, views
        assert (peak.moment, peak.parts, peak.total) == ("second", {"gone": 2048, "kept": 1024}, 3072)
        torch.empty(1)
        assert ledger.peak().total == 4, "what is gone is gone, and a peak is told once"


def test_what_a_backward_needs_lives_until_then() -> None:
    with FakeTensorMode(), Ledger() as ledger:
        weight = torch.empty(KILO, requires_grad=True)
        with ledger.during("forward", "activations"):
            loss = (weight * 2).exp().sum()
        ledger.peak()
        with ledger.during("backward", "gradients"):
            loss.backward()
        assert ledger.peak().parts["activations"] >= 1024
        ledger.assign([weight.grad], "gradients")
        torch.empty(1)
        assert ledger.peak().parts.get("gradients") == 1024


def test_storages_that_are_emptied_and_filled_count_as_they_are() -> None:
    with FakeTensorMode(), Ledger() as ledger:
        kept = torch.empty(KILO)
        kept.untyped_storage().resize_(0)
        torch.empty(1)
        ledger.peak()
        torch.empty(1)
        assert ledger.peak().total == 4
        kept.untyped_storage().resize_(2048)
        torch.empty(1)
        assert ledger.peak().total == 2052


def test_a_tensor_may_be_told_apart_by_what_it_is() -> None:
    with FakeTensorMode(), Ledger(lambda tensor: "square" if tensor.dim() == 2 else None) as ledger:
        with ledger.during("now", "flat"):
            both = torch.empty(KILO), torch.empty(16, 16)
        assert ledger.peak().parts == {"flat": 1024, "square": 1024}
        del both
