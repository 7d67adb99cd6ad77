"""From a checkpoint to a draft that vLLM loads: `python -m eyas.draft.export RUN_DIR`.

What was written is read back and compared with the trained weights, tensor by tensor, before the directory gets its name.
"""

import json
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load

from eyas.artifact import provenance, publish, read_manifest, remove, write_file
from eyas.config import Config, load_config
from eyas.disk import full_disk_explained
from eyas.draft.build import build_draft
from eyas.draft.given import PROVENANCE_FILE
from eyas.draft.handover import CARD, card, gather, raw_card
from eyas.draft.model import DECODING_ATTENTION, Draft
from eyas.draft.raw import compare_raw, save_raw
from eyas.draft.schema import ExportFormat
from eyas.draft.shape import check_raw
from eyas.draft.vocabulary import from_mappings
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.run import Run
from eyas.stages import draft_shape, states_artifact, tokens_artifact
from eyas.verifier.locate import locate


def export(run: Run) -> None:
    """Write the run's newest checkpoint, or its best (`export.checkpoint`), to `draft/`, and to what else `export.formats` names.

    Raises:
        EyasError: no checkpoint yet, a format that can't hold this draft, or what was read back is not what was trained.
    """
    config = load_config(run.config_file)
    shape, raw = draft_shape(config), ExportFormat.sglang in config.export.formats
    if raw:
        check_raw(config.draft, shape)
    checkpoint = run.checkpoint_to_export(config)
    if checkpoint is None:
        raise EyasError(f"{run.directory} has no complete checkpoint to export; train it first")
    manifest = read_manifest(checkpoint)
    step = manifest["step"]
    draft = trained_draft(config, checkpoint)

    record = {
        "run": config.name,
        "step": step,
        "verifier": {
            "name": config.verifier.name,
            "path": config.verifier.path,
            "hub": locate(config.verifier).hub,
            "weights": locate(config.verifier).identity,
        },
        "tokens": tokens_artifact(config).fingerprint,
        "states": states_artifact(config).fingerprint,
        "cost": manifest.get("cost", {}),
        **provenance(),
    }
    known = gather(config, run, record)
    remove(run.raw_draft)  # an older one would be another draft than the one beside it
    if raw:
        partial = _partial(run.raw_draft)
        save_raw(draft, partial)
        compare_raw(config, shape, draft, partial)
        _publish(partial, run.raw_draft, record, raw_card(config, known))
    partial = _partial(run.draft)
    save(draft, partial)
    compare(draft, partial)
    _publish(partial, run.draft, record, card(config, known))
    beside = f" and {run.raw_draft.name}/ (raw Eagle3 format, not served here)" if raw else ""
    print(f"export   {run.draft}{beside}  step {step}, every tensor read back and equal", flush=True)


def _partial(final: Path) -> Path:
    partial = final.with_suffix(".partial")
    remove(partial)
    return partial


def _publish(partial: Path, final: Path, record: dict[str, Any], readme: str) -> None:
    write_file(partial / PROVENANCE_FILE, json.dumps(record, indent=2) + "\n")
    write_file(partial / CARD, readme)
    remove(final)
    publish(partial, final)


def trained_draft(config: Config, checkpoint: Path) -> Draft:
    """The draft with a checkpoint's weights, in the type its verifier was captured in."""
    draft = build_draft(config)
    draft.freeze(trainable_head=config.draft.trainable_head)
    state = {"state_dict": {f"draft.{name}": tensor for name, tensor in draft.state_dict().items()}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it should be: one process reads
        load(state, checkpoint_id=checkpoint, no_dist=True)
    draft.attach()
    cast(nn.Module, draft).to(getattr(torch, config.capture.dtype.name))
    return draft


def save(draft: Draft, directory: Path) -> None:
    """Write config.json and model.safetensors as speculators' own class would."""
    draft.save_pretrained(directory)
    tidy_config(directory)


def tidy_config(directory: Path) -> None:
    """Make a saved config.json speculators' own."""
    # What save_pretrained adds for our subclass, or for code that speculators' class saves beside itself, means nothing to vLLM.
    (directory / "config.py").unlink(missing_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config.pop("auto_map", None)
    write_file(
        directory / "config.json", json.dumps({**config, "architectures": ["Eagle3DraftModel"]}, indent=2) + "\n"
    )


def compare(draft: Draft, directory: Path) -> None:
    """Compare what stands in `directory` with the live draft.

    Raises:
        EyasError: a tensor that is missing, left over, different or not finite; layer ids that vLLM would not find.
    """
    written = load_file(directory / "model.safetensors")
    live: dict[str, Tensor] = draft.state_dict()
    if written.keys() != live.keys():
        raise EyasError(
            f"export: {sorted(written.keys() ^ live.keys())} are in the draft or in {directory}, but not in both"
        )
    for name, tensor in live.items():
        if not torch.equal(tensor, written[name]) or not tensor.isfinite().all():
            raise EyasError(f"export: {name} in {directory} is not the trained tensor")
    if "d2t" in written:
        from_mappings(written["d2t"], written["t2d"], f"export: {directory}")
    config = json.loads((directory / "config.json").read_text())
    if config.get("eagle_aux_hidden_state_layer_ids") != draft.config.eagle_aux_hidden_state_layer_ids:
        raise EyasError(
            f"export: the layer ids are not at the top level of {directory}/config.json, where vLLM looks for them"
        )


def load_draft(directory: Path, dtype: torch.dtype, device: torch.device) -> Draft:
    """A draft in the speculators format, from its own files alone, ready to draft.

    Raises:
        EyasError: a file that isn't there, or tensors that don't fit the configuration.
    """
    if not (directory / "config.json").exists() or not (directory / "model.safetensors").exists():
        raise EyasError(f"{directory} holds no exported draft (config.json and model.safetensors)")
    config = cast(Eagle3SpeculatorConfig, Eagle3SpeculatorConfig.from_pretrained(directory))
    config.transformer_layer_config._attn_implementation = DECODING_ATTENTION
    tensors = load_file(directory / "model.safetensors")
    verifier_vocab_size = config.transformer_layer_config.vocab_size
    draft_ids_D = (
        from_mappings(tensors["d2t"], tensors["t2d"], str(directory))
        if "d2t" in tensors
        else torch.arange(verifier_vocab_size)
    )
    draft = Draft(config, draft_ids_D)
    missing, unexpected = draft.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise EyasError(f"{directory}: tensors missing {missing or 'none'}, left over {unexpected or 'none'}")
    draft.draft_ids_D = draft_ids_D.to(device)
    for parameter in draft.parameters():  # not the buffers: rotary frequencies stay float32, as in training and in vLLM
        parameter.data = parameter.data.to(dtype)
    cast(nn.Module, draft).to(device).eval()
    return draft


def main(directory: Path) -> None:
    with full_disk_explained(directory):
        export(Run(directory))


if __name__ == "__main__":
    child_main(main)
