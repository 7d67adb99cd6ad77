"""`eyas inspect DIR`: what a checkpoint is, proved where it can be run, as a YAML to keep. And `eyas doctor --list`."""

import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from eyas.cli.auto import find, open_directory, verifier_composer
from eyas.cli.compose import compose
from eyas.config import config_yaml
from eyas.doctor.findings import console
from eyas.errors import EyasError
from eyas.process import run_child
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.facts import resolve
from eyas.verifier.library import inherited, parents, read_library

NEUTRAL = ["data=none", "experiment=none", "draft.vocab_size=null", "capture=transformers"]
"""What surrounds a verifier that is only looked at."""


def inspect(arguments: Sequence[str]) -> None:
    """Detect every fact of a directory, check it, print the YAML.

    Raises:
        EyasError: the checkpoint can be read in no or in several ways.
    """
    options = [argument for argument in arguments if argument.startswith("--")]
    paths = [argument for argument in arguments if not argument.startswith("--")]
    if len(paths) != 1 or any(
        option.partition("=")[0] not in ("--bundle", "--config-dir", "--trust-remote-code") for option in options
    ):
        raise EyasError(
            "eyas inspect DIR [--bundle=FILE.zip] [--config-dir=DIR] [--trust-remote-code]: the directory of a checkpoint"
        )
    values = {option.partition("=")[0]: option.partition("=")[2] for option in options}
    checkpoint = open_directory(Path(paths[0]).expanduser())
    if "--bundle" in values:
        write_bundle(checkpoint, Path(values["--bundle"] or f"{checkpoint.directory.resolve().name}.zip"))
        return
    config_dirs = [values["--config-dir"]] if values.get("--config-dir") else []
    print(f"reads {checkpoint.layout}")
    reading = find(checkpoint, config_dirs, trust="--trust-remote-code" in values)
    for line in reading.why:
        print(line)
    facts = resolve(verifier_composer(config_dirs)(reading.option, reading.values), checkpoint)
    for warning in facts.warnings:
        print(f"warning: {warning}")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="eyas-") as file:
        file.write(config_yaml(compose([*reading.overrides, *NEUTRAL], config_dirs)))
        file.flush()
        run_child("eyas.doctor", Path(file.name))
    print(f"\nSave this as conf/verifier/{reading.values['name']}.yaml, or into a --config-dir:\n")
    print(reading.yaml, end="")  # whole lines, to be copied


def write_bundle(checkpoint: Checkpoint, file: Path) -> None:
    """The config, the index and the tensor headers, no weights: enough to reproduce every fact elsewhere."""
    headers = {key: [checkpoint.header(key).dtype, list(checkpoint.header(key).shape)] for key in checkpoint.file_of}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in sorted(checkpoint.directory.glob("*.json")):
            if path.name not in ("tokenizer.json", "vocab.json"):
                bundle.write(path, path.name)
        bundle.writestr("headers.json", json.dumps(headers, indent=1))
    print(f"{file}  {file.stat().st_size / 1024:.0f} KiB: config, index and {len(headers)} tensor headers, no weights")


def list_verifiers(config_dirs: Sequence[str] = ()) -> None:
    """The named verifiers with their facts."""
    library = read_library(config_dirs)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("verifier", "extends", "hidden x layers", "vocabulary", "head", "vLLM", "evidence"):
        table.add_column(column, no_wrap=True)
    for entry in library:
        if entry.option.startswith("arch/"):
            continue
        sizes = [inherited(library, entry, "published", key) for key in ("hidden_size", "num_layers", "vocab_size")]
        hidden, layers, vocab = ("?" if size is None else f"{size}" for size in sizes)
        archetype = next((it.option for it in parents(library, entry)), "")
        served = {True: "captures, serves", False: "no EAGLE-3"}.get(
            inherited(library, entry, "vllm", "eagle3"), "untried"
        )
        head = "tied" if inherited(library, entry, "tied") else "own"
        evidence = str(inherited(library, entry, "evidence"))
        table.add_row(entry.option, archetype, f"{hidden} x {layers}", vocab, head, served, evidence)
    console().print(table)
