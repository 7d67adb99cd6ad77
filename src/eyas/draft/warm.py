"""`draft.warm_start`: the draft's layers begin as the verifier's last ones, instead of as random numbers.

A verifier's layer reads a state of H numbers, the draft's first one a token's embedding beside it: that half keeps its random
start. The fused state begins as the last captured one. Works where a layer of the verifier has the draft's own tensors and shapes.
"""

import re

import torch
from torch import Tensor

from eyas.draft.model import Draft
from eyas.errors import EyasError
from eyas.verifier.checkpoint import Checkpoint

LAYER = re.compile(r"(?P<stem>.*\blayers\.)(?P<number>\d+)\.self_attn\.q_proj\.weight")
RENAMED = {"hidden_norm.weight": "input_layernorm.weight"}
"""In the draft's first layer the state has a norm of its own; `input_layernorm` is the token's."""
SIDE_BY_SIDE = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
"""Of the first layer: [outputs, token and state]."""


def start_from_verifier(draft: Draft, checkpoint: Checkpoint, num_layers: int) -> None:
    """Copy the verifier's last layers into the draft's.

    Raises:
        EyasError: its layers have other tensors or shapes; the first difference is named.
    """
    stem = layers_stem(checkpoint, num_layers)
    first = num_layers - len(draft.layers)
    with torch.no_grad():
        for number, layer in enumerate(draft.layers):
            for name, parameter in layer.named_parameters():
                if not (number == 0 and name == "input_layernorm.weight"):
                    key = f"{stem}{first + number}.{RENAMED.get(name, name) if number == 0 else name}"
                    copy_into(parameter, read(checkpoint, key), key, half=number == 0 and name in SIDE_BY_SIDE)
        hidden_size = draft.fc.weight.shape[0]
        draft.fc.weight.zero_()
        draft.fc.weight[:, -hidden_size:] = torch.eye(hidden_size)


def layers_stem(checkpoint: Checkpoint, num_layers: int) -> str:
    """What the names of the verifier's layers begin with, up to their number."""
    found = [LAYER.fullmatch(key) for key in checkpoint.file_of]
    stems = {it["stem"] for it in found if it and int(it["number"]) == num_layers - 1}
    if len(stems) != 1:
        raise EyasError(
            f"draft.warm_start=true: expected one tensor *layers.{num_layers - 1}.self_attn.q_proj.weight in {checkpoint.directory}, "
            f"found {len(stems)}; set draft.warm_start=false"
        )
    return stems.pop()


def read(checkpoint: Checkpoint, key: str) -> Tensor:
    if key not in checkpoint.file_of or checkpoint.header(key).dtype not in ("F32", "BF16", "F16"):
        raise EyasError(f"draft.warm_start=true: {key} is no plain tensor of the verifier; set draft.warm_start=false")
    return checkpoint.tensor(key).float()


def copy_into(parameter: Tensor, tensor: Tensor, key: str, *, half: bool) -> None:
    """Into the whole parameter, or into the columns of the state."""
    target = parameter[:, parameter.shape[1] // 2 :] if half else parameter
    if target.shape != tensor.shape:
        raise EyasError(
            f"draft.warm_start=true: {key} has shape {list(tensor.shape)}, and the draft's layer needs {list(target.shape)}; give it "
            "the verifier's own numbers of heads and widths (verifier.draft), or set draft.warm_start=false"
        )
    target.copy_(tensor)
