"""States that somebody else has captured, in files (`data/row_files.py`): every one is checked, and read where it is.

Files can't be asked for the verifier's logits. So whoever writes them adds some: `parity.safetensors`, with the `logits`
[N, V] that the verifier itself gave at the first N positions of row 0. Without that file, a weaker proof must do: the teacher
has to explain what the verifier wrote, and no other reading of its tensors may do it better.

Shapes: N positions, T tokens, L chosen layers, H hidden size, V verifier vocabulary.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from eyas.artifact import building, complete, write_file
from eyas.capture.expected import Expected
from eyas.capture.parity import alternatives, prove
from eyas.config import Config
from eyas.data.row_files import read_row, row_file
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.stages import parity_file, states_artifact, tokens_artifact, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher

PARITY = "parity.safetensors"

POSITIONS = 1024
"""Of the verifier's own tokens, that are explained."""

CLEARLY = 3.0
"""Standard errors of a mean difference that can't be chance."""


def adopt(config: Config) -> None:
    """Write the states artifact of the tokens artifact: where its files are, all of them checked.

    Raises:
        EyasError: a file that isn't that row's states, or a reading of the verifier that isn't its own.
    """
    artifact, file = states_artifact(config), parity_file(config)
    directory = Path(config.capture.path or "").resolve()
    tokens = Tokens(tokens_artifact(config).directory)
    with building(artifact) as partial:
        if partial is not None:
            write_file(partial / file.name, proof(config, directory, tokens))
            sizes = check(directory, tokens, Expected.of(config))
            counts = {"tokens": sum(tokens.lengths), "files": {"path": str(directory), "sizes": sizes}}
            complete(artifact, partial, counts)
    if not file.exists():
        write_file(file, proof(config, directory, tokens))


def check(directory: Path, tokens: Tokens, expected: Expected) -> list[int]:
    """Read every row's file once; their sizes in bytes.

    Raises:
        EyasError: one is missing, or holds something else.
    """
    progress = Progress("capture", sum(tokens.lengths), "tokens")
    sizes = []
    for row in range(tokens.num_rows):
        file = row_file(directory, row)
        captured_T, states_TLH = _read(directory, row)
        expected.check(states_TLH, captured_T, tokens.row(row)[0], source=str(file))
        sizes.append(file.stat().st_size)
        progress.advance(len(states_TLH))
    return sizes


def proof(config: Config, directory: Path, tokens: Tokens) -> str:
    """That the teacher reads these states as the verifier does (JSON).

    Raises:
        EyasError: it doesn't.
    """
    dtype: torch.dtype = getattr(torch, config.capture.dtype.name)
    teacher = Teacher.from_checkpoint(locate(config.verifier), verifier_facts(config), dtype)
    if (directory / PARITY).exists():
        own_NV = load_file(directory / PARITY)["logits"].float()
        parity = prove(teacher, _read(directory, 0)[1][: len(own_NV), -1], own_NV)
        print(f"capture  parity {parity}", flush=True)
        return json.dumps(vars(parity), indent=2) + "\n"
    state_NH, next_N = _written(directory, tokens)
    nats, like = explains(teacher, state_NH, next_N)
    hint = f"; so do other readings: {', '.join(like)}" if like else ", and no other reading does"
    print(f"capture  no {PARITY}: the teacher explains what was written with {nats:.2f} nats a token{hint}", flush=True)
    return json.dumps({"num_positions": len(next_N), "nats_per_token": nats, "as_well": like}, indent=2) + "\n"


def explains(teacher: Teacher, state_NH: Tensor, next_N: Tensor) -> tuple[float, list[str]]:
    """(nats per token with which the teacher explains the tokens that follow, other readings that do it about as well).

    Raises:
        EyasError: badly, or another reading of the same tensors does it clearly better.
    """

    def nats(logits_NV: Tensor) -> Tensor:
        return cross_entropy(logits_NV.double(), next_N, reduction="none")

    def worse(logits_NV: Tensor) -> float:
        """By how many standard errors."""
        difference_N = nats(logits_NV) - ours_N
        return float(difference_N.mean() / (difference_N.std() / len(difference_N) ** 0.5))

    ours_N = nats(teacher(state_NH))
    ours = float(ours_N.mean())
    others = alternatives(teacher, state_NH, worse)
    better = [it.name for it in others if it.kl < -CLEARLY]
    if better or ours > 0.5 * math.log(len(teacher.head)):
        hint = f" ({', '.join(better)}: better)" if better else ""
        raise EyasError(
            f"the teacher explains what the verifier wrote with {ours:.2f} nats a token{hint}: verifier.norm, verifier.post_head "
            f"or verifier.keys is not what this model does, or the files are another model's; {PARITY} gives a sharper proof "
            "(docs/capture_files.md)"
        )
    return ours, [it.name for it in others if it.kl < CLEARLY]


def _written(directory: Path, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """(last state [N, H], next token [N]) of positions before a token that the verifier wrote."""
    states, following, found = [], [], 0
    for row in range(tokens.num_rows):
        ids_T, mask_T = tokens.row(row)
        before_N = mask_T[1:].bool().nonzero()[:, 0][: POSITIONS - found]
        states.append(_read(directory, row)[1][before_N, -1])
        following.append(ids_T[before_N + 1].long())
        found += len(before_N)
        if found == POSITIONS:
            break
    return torch.cat(states), torch.cat(following)


def _read(directory: Path, row: int) -> tuple[Tensor, Tensor]:
    try:
        return read_row(directory, row)
    except FileNotFoundError:
        raise EyasError(
            f"{row_file(directory, row)} is missing: every row of the tokens artifact needs its file, the held-out ones too "
            "(docs/capture_files.md)"
        ) from None
