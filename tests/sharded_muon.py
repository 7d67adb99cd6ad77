"""One of two devices that train a small model with Muon: `python sharded_muon.py RANK DIRECTORY`."""

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from eyas.training import muon


class Model(nn.Module):
    """A wide and a tall matrix, one that two devices can't share evenly, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.Sequential(nn.Linear(12, 5, bias=False), nn.RMSNorm(5), nn.Linear(5, 8, bias=False))
        self.lm_head = nn.Linear(8, 7, bias=False)

    def forward(self, state_NH: torch.Tensor) -> torch.Tensor:
        logits_NV: torch.Tensor = self.lm_head(self.parts(state_NH))
        return logits_NV.square().sum()


def trained(model: nn.Module) -> None:
    optimizer = muon.MuonAndAdamW(
        model.named_parameters(),
        lr=1e-2,
        adamw_lr=1e-3,
        momentum=0.9,
        ns_steps=5,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    for step in range(6):
        model(torch.randn(4, 12, generator=torch.Generator().manual_seed(step))).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    rank, directory = int(sys.argv[1]), Path(sys.argv[2])
    muon.fast_dtype = lambda device: torch.float32  # in bfloat16 roundings would differ
    distributed.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=2)
    model = Model()
    fully_shard(model)
    trained(model)
    whole = {name: it.full_tensor() for name, it in model.state_dict().items()}
    if rank == 0:
        torch.save(whole, directory / "whole.pt")
    distributed.destroy_process_group()
