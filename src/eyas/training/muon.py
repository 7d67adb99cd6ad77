"""Muon for the draft's matrices and AdamW for the rest, as one optimizer; both are torch's own.

Muon (Jordan et al., 2024) moves a matrix along its orthogonalised momentum. It is meant for matrices between hidden states: norms
and a trainable head, whose rows stand for tokens, stay with AdamW. On several devices torch orthogonalises shards together.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

HEAD = "lm_head"


class MuonAndAdamW(Optimizer):
    """Steps both; one state, one list of groups, so that checkpoints and schedules see an ordinary optimizer."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        adamw_lr: float,
        momentum: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Args:
        parameters: By name.
        lr: Of Muon, as the root mean square of an update: on the scale of AdamW's, whatever a matrix's shape.
        adamw_lr: Of AdamW.
        """
        named = list(parameters)
        matrices = [(name, it) for name, it in named if it.ndim == 2 and HEAD not in name]
        others = [(name, it) for name, it in named if it.ndim != 2 or HEAD in name]
        muon = Muon(matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.parts: tuple[Optimizer, ...] = (muon,)
        if others:
            self.parts += (AdamW(others, lr=adamw_lr, betas=betas, weight_decay=weight_decay),)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of both; `closure` is Lightning's, which has nothing to compute where the loop is ours."""
        if closure is not None:
            closure()
        for part in self.parts:
            part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After a checkpoint is loaded."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
