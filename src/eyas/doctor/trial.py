"""A model type that no YAML lists: every arithmetic of the library is tried, and exactly one must rebuild its logits.

`python -m eyas.doctor.trial REQUEST` reads {path, name, candidates: [{option, verifier}]} and writes reading.json beside it.
The embedding, norm and head are found by their *values*: the stored tensor that equals the loaded module's.
"""

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from transformers import PreTrainedModel

from eyas.capture.modules import Modules, find_modules
from eyas.capture.parity import compare, embeds, own_logits
from eyas.capture.tap import load_verifier
from eyas.doctor.prompts import token_ids
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.detect import Reading
from eyas.verifier.facts import Arithmetic, resolve_arithmetic, resolve_embedding
from eyas.verifier.language import candidates, descend
from eyas.verifier.schema import NormCast, NormKind, Target, VerifierConfig
from eyas.verifier.teacher import Teacher, normalise

EXACT = 1e-5
"""Relative difference of logits in float32 below which a reading is the verifier's."""

Library = list[tuple[str, VerifierConfig]]


def try_all(checkpoint: Checkpoint, name: str, library: Library) -> Reading:
    """The one reading that rebuilds the model's own logits in float32.

    Raises:
        EyasError: none does, or two that differ do, or the model can't be run on a few tokens.
    """
    try:
        return _try_all(checkpoint, name, library)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # the model's own code
        what = str(error).strip().splitlines()[0] if str(error) else ""
        raise EyasError(
            f"{checkpoint.directory}: no YAML lists this model type, and it can't be tried ({type(error).__name__}: {what}); "
            "write a YAML, docs/verifiers.md says how"
        ) from error


def _try_all(checkpoint: Checkpoint, name: str, library: Library) -> Reading:
    path, num_layers = _language(checkpoint)
    for _, verifier in library:
        verifier.config.path = path
    base = dict(library)["arch/llama"]
    model = load_verifier(checkpoint, base, torch.float32, torch.device("cpu"))
    try:
        modules, target = find_modules(model, base, num_layers), Target.pre_norm
    except EyasError:
        modules, target = find_modules(model, replace(base, target=Target.head_input), num_layers), Target.head_input
    embedding_VH: Any = model.get_input_embeddings().weight
    prompts = token_ids(base, checkpoint, len(embedding_VH))
    first_NH, state_NH, own_NV = own_logits(model, modules, replace(base, target=target), prompts)
    fitting: dict[Arithmetic, Library] = {}
    for option, verifier in library:
        verifier.target = target
        try:
            arithmetic = replace(resolve_arithmetic(verifier, checkpoint), cast=NormCast.after_weight)
        except EyasError:
            continue  # it reads a number that this config does not have
        teacher = _teacher(arithmetic, model, modules)
        if teacher is not None and compare(teacher(state_NH), own_NV, torch.float32).difference < EXACT:
            fitting.setdefault(arithmetic, []).append((option, verifier))
    if len(fitting) != 1:
        what = "; ".join(f"{options[0][0]}: {arithmetic}" for arithmetic, options in fitting.items()) or "none"
        raise EyasError(
            f"{checkpoint.directory}: no YAML lists this model type, and of the library's arithmetics {len(fitting)} rebuild "
            f"its logits, expected exactly one (fitting: {what}); write a YAML, docs/verifiers.md says how"
        )
    found = _Found(checkpoint, model, modules, path, target, first_NH, torch.cat(prompts))
    option, values = found.nearest(next(iter(fitting.values())), library)
    why = f"no YAML lists its model type; of all arithmetics tried only that of verifier/{option}.yaml rebuilds its logits"
    return Reading(option, {"name": name, "path": str(checkpoint.directory), **values}, (why,))


def _language(checkpoint: Checkpoint) -> tuple[str, int]:
    paths = candidates(checkpoint.config)
    if len(paths) != 1:
        raise EyasError(
            f"{checkpoint.directory}: {checkpoint.config_file} describes language models at "
            f"{' and '.join(map(repr, paths)) or 'no place that is known'}; write a YAML with verifier.config.path"
        )
    language = descend(checkpoint.config, paths[0])
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "n_blocks")
    counts = [language[key] for key in names if isinstance(language.get(key), int)]
    if not counts:
        raise EyasError(
            f"{checkpoint.directory}: the config says in no known way how many layers there are; write a YAML"
        )
    return paths[0], counts[0]


def _teacher(arithmetic: Arithmetic, model: PreTrainedModel, modules: Modules) -> Teacher | None:
    """The teacher out of the loaded model's own modules; None where they lack what the arithmetic needs."""
    head: Any = model.get_submodule(modules.paths["head"])
    norm: Any = modules.last if arithmetic.norm is not NormKind.none else nn.Identity()
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if (arithmetic.norm.has_weight, arithmetic.norm.has_bias) != (weight is not None, bias is not None):
        return None
    return Teacher(arithmetic, head.weight, norm_H=weight, norm_bias_H=bias, head_bias_V=getattr(head, "bias", None))


@dataclass(frozen=True)
class _Found:
    """What the loaded model shows, to be said in a YAML's words."""

    checkpoint: Checkpoint
    model: PreTrainedModel
    modules: Modules
    path: str
    target: Target
    first_NH: Tensor
    ids_N: Tensor

    def nearest(self, fitting: Library, library: Library) -> tuple[str, dict[str, Any]]:
        """The fitting YAML that differs least from the checkpoint, and the differences."""
        names, counts = self._names(), self._counts(library)
        readings = [(option, self._differences(verifier, names, counts)) for option, verifier in fitting]
        return min(readings, key=lambda reading: len(reading[1]))

    def _names(self) -> dict[str, str | None]:
        head: Any = self.model.get_submodule(self.modules.paths["head"])
        norm: Any = self.modules.last if self.modules.last is not head else nn.Identity()
        embedding: Any = self.model.get_input_embeddings().weight
        tensors = {
            "embedding": embedding,
            "norm": getattr(norm, "weight", None),
            "norm_bias": getattr(norm, "bias", None),
            "head": None if head.weight.data_ptr() == embedding.data_ptr() else head.weight,
            "head_bias": getattr(head, "bias", None),
        }
        return {key: None if tensor is None else _name_of(self.checkpoint, tensor) for key, tensor in tensors.items()}

    def _counts(self, library: Library) -> dict[str, str]:
        """The config's names of the sizes, among all names that the library knows."""
        language = descend(self.checkpoint.config, self.path)
        head: Any = self.model.get_submodule(self.modules.paths["head"])
        sizes = dict(zip(("vocab_size", "hidden_size"), head.weight.shape, strict=True))
        named: dict[str, str] = {}
        for field, size in {**sizes, "num_layers": len(self.modules.layers)}.items():
            known = dict.fromkeys(getattr(verifier.config, field).config for _, verifier in library)
            named[field] = next((key for key in known if key and language.get(key) == size), "")
            if not named[field]:
                raise EyasError(
                    f"{self.checkpoint.directory}: no known key of {self.checkpoint.config_file} says {field} = {size}: "
                    f"write a YAML with verifier.config.{field}"
                )
        return named

    def _differences(
        self, verifier: VerifierConfig, names: dict[str, str | None], counts: dict[str, str]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {"config.path": self.path}
        for field, key in counts.items():
            if getattr(verifier.config, field).config != key:
                values[f"config.{field}.config"] = key
        for key, stored in names.items():
            known = [verifier.keys.prefix + candidate for candidate in getattr(verifier.keys, key)]
            if stored is not None and stored not in known:
                values[f"keys.{key}"] = [stored.removeprefix(verifier.keys.prefix)]
            if stored is None and known and key == "head_bias":
                values["keys.head_bias"] = []
        if (tied := names["head"] is None) != verifier.tied:
            values["tied"] = tied
        if self.target is Target.head_input:
            values["target"] = self.target.name
        elif (cast := _cast(self.modules.last, verifier, self.checkpoint)) is not verifier.norm.cast:
            values["norm.cast"] = cast.name
        embedding_VH: Any = self.model.get_input_embeddings().weight
        try:
            steps = resolve_embedding(verifier, self.checkpoint)
        except EyasError:  # it reads a number that this config does not have
            return {**values, "embedding": None}
        if steps is not None and embeds(embedding_VH, steps, self.ids_N, self.first_NH) > EXACT:
            values["embedding"] = None
        return values


def _name_of(checkpoint: Checkpoint, tensor: Tensor) -> str:
    """The stored tensor with these values."""
    shape = tuple(tensor.shape)
    same = [
        key
        for key in checkpoint.file_of
        if checkpoint.header(key).shape == shape and torch.equal(checkpoint.tensor(key).float(), tensor.float())
    ]
    if len(same) != 1:
        raise EyasError(
            f"{checkpoint.directory}: a tensor of shape {list(shape)} that the model uses stands in the checkpoint under "
            f"{len(same)} names ({', '.join(same[:4]) or 'none'}): name it with verifier.keys"
        )
    return same[0]


def _cast(norm: nn.Module, verifier: VerifierConfig, checkpoint: Checkpoint) -> NormCast:
    """How the norm module itself rounds in bfloat16; as the YAML says where that can't be told."""
    arithmetic = resolve_arithmetic(verifier, checkpoint)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if weight is None:
        return arithmetic.cast
    state = torch.randn(64, len(weight), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    module: Any = deepcopy(norm).to(torch.bfloat16)
    own = module(state).float()

    def error(cast: NormCast) -> float:
        ours = normalise(
            state, weight.bfloat16(), None if bias is None else bias.bfloat16(), replace(arithmetic, cast=cast)
        )
        return float((ours.float() - own).abs().sum())

    best = min(NormCast, key=error)
    return arithmetic.cast if error(arithmetic.cast) == error(best) else best


def main(request_file: Path) -> None:
    request = json.loads(request_file.read_text())
    schema = OmegaConf.structured(VerifierConfig)
    library = [
        (it["option"], cast(VerifierConfig, OmegaConf.to_object(OmegaConf.merge(schema, it["verifier"]))))
        for it in request["candidates"]
    ]
    torch.set_grad_enabled(False)
    reading = try_all(Checkpoint(Path(request["path"])), request["name"], library)
    (request_file.parent / "reading.json").write_text(json.dumps(vars(reading)))


if __name__ == "__main__":
    child_main(main)
