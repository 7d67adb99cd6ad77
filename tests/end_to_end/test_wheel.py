"""A wheel, in an environment that holds nothing else, run from another directory."""

import subprocess
import sys
from pathlib import Path

import yaml

from conftest import ROOT

COMPOSING = ["hydra-core==1.3.8", "omegaconf==2.3.1", "rich", "pyyaml"]
"""All that the command line needs up to a checked configuration; torch and the rest would take minutes to install."""


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_prints_its_composed_config(tmp_path: Path) -> None:
    pip = ["-m", "pip", "--disable-pip-version-check", "-q"]
    call(sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path / "dist", ROOT, cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("eyas-*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    call(python, *pip, "install", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
    call(python, *pip, "install", "--no-compile", *COMPOSING, cwd=tmp_path)

    (tmp_path / "elsewhere" / "verifier").mkdir(parents=True)
    (tmp_path / "elsewhere" / "verifier" / "mine.yaml").write_text("defaults: [arch/llama@_here_]\nname: mine\n")
    eyas = tmp_path / "env" / "bin" / "eyas"
    printed = call(
        eyas, "train", "--config-dir", ".", "verifier=mine", "--cfg", "job", "--resolve", cwd=tmp_path / "elsewhere"
    )
    config = yaml.safe_load(printed)
    assert (config["name"], config["verifier"]["keys"]["norm"][0]) == ("mine-demo-eagle3", "model.norm.weight")
    data = call(
        python,
        "-c",
        "from importlib.resources import files; print(files('eyas.conf') / 'data/demo.jsonl')",
        cwd=tmp_path,
    )
    assert Path(data.strip()).stat().st_size > 100_000
    assert (Path(data.strip()).parents[2] / "capture" / "connector" / "eyas_connector.py").exists()
    templates = Path(data.strip()).parents[2] / "compare" / "templates"
    assert {file.name for file in templates.iterdir()} == {"page.css", "page.html.j2", "page.js"}
    studies = call(eyas, "train", "sweeps=learning_rate", "--cfg", "hydra", "-p", "hydra.sweeper.params", cwd=tmp_path)
    assert "optimizer.lr" in studies
