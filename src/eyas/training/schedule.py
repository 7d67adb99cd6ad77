"""Learning-rate schedules: a warm-up, then a decay over the rest of the run."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear(optimizer: Optimizer, *, num_steps: int, warmup_ratio: float, final_ratio: float) -> LambdaLR:
    """Down to `final_ratio` of the learning rate in a straight line."""
    return _warm_up_then(optimizer, num_steps, warmup_ratio, lambda done: 1 - (1 - final_ratio) * done)


def cosine(optimizer: Optimizer, *, num_steps: int, warmup_ratio: float, final_ratio: float) -> LambdaLR:
    """Down to `final_ratio` of the learning rate along half a cosine."""
    return _warm_up_then(
        optimizer,
        num_steps,
        warmup_ratio,
        lambda done: final_ratio + (1 - final_ratio) * (1 + math.cos(math.pi * done)) / 2,
    )


def _warm_up_then(
    optimizer: Optimizer, num_steps: int, warmup_ratio: float, decay: Callable[[float], float]
) -> LambdaLR:
    num_warmup = max(1, round(warmup_ratio * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return decay(min(1.0, (step - num_warmup) / max(1, num_steps - num_warmup)))

    return LambdaLR(optimizer, factor)
