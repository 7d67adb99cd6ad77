"""Muon for the draft's matrices and torch's AdamW for the rest, as one optimizer.

Muon (Jordan et al., 2024) moves a matrix along its orthogonalised momentum. It is meant for matrices between hidden states: norms
and a trainable head, whose rows stand for tokens, stay with AdamW. On several devices shards are orthogonalised together.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from eyas.fields import at_least

HEAD = "lm_head"
QUINTIC = (3.4445, -4.775, 2.0315)
"""Coefficients of Muon's iteration: they lift small singular values fast, and leave all between 0.7 and 1.2."""


@cache
def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16, which is enough for Muon, or float32 on a CPU that only emulates it.

    There bfloat16 takes 25 s for one step of a draft of SmolLM2-135M, and float32 1.3 s (one core without AVX-512).
    """
    if device.type != "cpu":
        return torch.bfloat16
    able = torch.cpu.get_capabilities()
    return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32


def orthogonalised(matrix: Tensor, dtype: torch.dtype, ns_steps: int) -> Tensor:
    """The matrix with its singular values near 1, by Newton-Schulz iterations in `dtype`; [A, B] -> [A, B]."""
    a, b, c = QUINTIC
    wide = matrix.to(dtype) if matrix.shape[0] <= matrix.shape[1] else matrix.to(dtype).T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(ns_steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


class Muon(Optimizer):
    """torch.optim.Muon, but for the type that it orthogonalises in: torch's is bfloat16 on any device.

    Nesterov's momentum, and torch's `match_rms_adamw`.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        momentum: float,
        ns_steps: int,
        weight_decay: float,
    ) -> None:
        super().__init__(
            parameters, {"lr": lr, "momentum": momentum, "ns_steps": ns_steps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, group)

    def _move(self, matrix: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, lr = self.state[matrix], group["lr"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(average, group["momentum"])
        matrix.mul_(1 - lr * group["weight_decay"])
        direction = orthogonalised(unwrapped(ahead), fast_dtype(ahead.device), group["ns_steps"])
        unwrapped(matrix).add_(direction, alpha=-0.2 * lr * max(matrix.shape) ** 0.5)


def unwrapped(matrix: Tensor) -> Tensor:
    """On one device the shard is the matrix, and a plain tensor spares DTensor's dispatch: a tenth of a small draft's step."""
    return matrix.to_local() if isinstance(matrix, DTensor) and matrix.device_mesh.size() == 1 else matrix


class MuonAndAdamW(Optimizer):
    """Steps both; one state, one list of groups, so that checkpoints and schedules see an ordinary optimizer."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        adamw_lr: float,
        momentum: float,
        ns_steps: int,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Args:
        parameters: By name.
        lr: Of Muon, as the root mean square of an update: on the scale of AdamW's, whatever a matrix's shape.
        adamw_lr: Of AdamW.
        ns_steps: Newton-Schulz iterations of Muon: nearly all of its cost, and the small singular values' share of the update.
        """
        at_least("optimizer.ns_steps", ns_steps, 1)
        named = list(parameters)
        matrices = [(name, it) for name, it in named if it.ndim == 2 and HEAD not in name]
        others = [(name, it) for name, it in named if it.ndim != 2 or HEAD in name]
        muon = Muon(matrices, lr=lr, momentum=momentum, ns_steps=ns_steps, weight_decay=weight_decay)
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
