"""What is ranked with what, what the tables show, and what they say."""

import csv
import io
import json
from pathlib import Path

import pytest

from compare_runs import WriteRun, counts
from conftest import run
from eyas.compare.columns import columns
from eyas.compare.outputs import as_csv, as_json, as_markdown, fitting
from eyas.compare.page import charted_keys
from eyas.compare.read import read_entries
from eyas.compare.table import Comparison, compare_entries
from eyas.compare.varied import varied_keys
from eyas.errors import EyasError


def compared(*places: Path) -> Comparison:
    return compare_entries(read_entries([str(place) for place in places]))


def test_a_clear_difference_is_said_with_its_interval_and_what_it_costs(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("s/low", "optimizer.lr=3e-4", measured=counts(1, 0.3))
    write_run("s/high", "optimizer.lr=1e-3", measured=counts(2, 0.5))
    write_run("s/long", "optimizer.lr=3e-3", measured=counts(3, 0.25), cost={"tokens": 60_000, "parameters": 7_450_560})
    [table] = compared(tmp_path / "outputs" / "s").tables
    assert [row.entry.name for row in table.rows] == ["high", "low", "long"]
    assert table.keys == ["optimizer.lr"]
    assert [list(row.varied) for row in table.rows] == [["0.001"], ["0.0003"], ["0.003"]]
    assert table.title.startswith("k=3, T=0, transformers, float32, 12 prompts of demo, held out, up to 20 tokens each")
    difference = table.rows[0].of.tau - table.rows[1].of.tau
    assert table.verdict.startswith(f"high beats low by {difference:.2f} tau (95 % CI ")
    assert table.verdict.endswith("12 prompts), at the same cost.")
    [table] = compared(tmp_path / "outputs/s/long", tmp_path / "outputs/s/high").tables
    assert table.verdict.endswith(", for 0.5 times the tokens trained.")


def test_a_difference_within_noise_says_how_many_prompts_would_tell(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    write_run("b", measured=counts(2, 0.4))
    write_run("c", measured=counts(3, 0.15))
    [table] = compared(tmp_path / "outputs").tables
    assert "within noise (95 % CI -" in table.verdict
    assert "prompts. It does beat c, by " in table.verdict
    assert [row.within_noise for row in table.rows] == [False, True, False]
    assert columns(table)[3].cells[1].endswith(" =")


def test_many_varied_keys_become_one_column(write_run: WriteRun, tmp_path: Path) -> None:
    """As after a sweep with `sweep.changes`: each row says what it has otherwise than most."""
    changes = ("seed=1", "draft.num_layers=2", "draft.fc_norm=true draft.norm_before_fc=false", "training.loss=ce")
    more = ("optimizer.lr=1e-3", "training.clip_norm=2", "training.unroll_steps=4", "draft.vocab_size=null")
    for number, change in enumerate(("", *changes, *more)):
        write_run(f"s/{number}", *change.split(), measured=counts(number, 0.4))
    [table] = compared(tmp_path / "outputs" / "s").tables
    run, changed, tau, *_ = columns(table)
    assert (run.name, changed.name, tau.name) == ("run", "changed", "tau")
    found = dict(zip(run.cells, changed.cells, strict=True))
    assert found["0"] == "-"
    assert found["3"] == "norm_before_fc=false, fc_norm=true"
    assert found["5"] == "lr=0.001"
    assert found["8"] == "vocab_size=null"
    assert not charted_keys(table), "one run beside eight others is no curve"
    kept, left_out = fitting(columns(table), 60, table.keys, table.measure)
    assert "changed" in [column.name for column in kept]
    assert "tau_sim" in left_out or "accepted" in left_out


def test_the_same_draft_twice_and_too_few_prompts(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    write_run("b", measured=counts(1, 0.4))
    [table] = compared(tmp_path / "outputs").tables
    assert table.verdict.startswith("a and b are the same, prompt by prompt: tau 1.")
    write_run("few/a", measured=counts(1, 0.4, num_prompts=4))
    write_run("few/b", measured=counts(2, 0.2, num_prompts=4))
    [table] = compared(tmp_path / "outputs" / "few").tables
    assert "on 4 prompts: too few to say how sure that is" in table.verdict
    assert table.rows[0].interval is None


UNLIKE = [
    ("evaluation.k=2", {"k": 2}),
    ("evaluation.max_tokens=21", {}),
    ("evaluation.dtype=bfloat16", {}),
    ("seed=0", {"num_prompts": 13}),
]


@pytest.mark.parametrize(("override", "changed"), UNLIKE)
def test_unlike_settings_are_never_ranked_together(
    write_run: WriteRun, tmp_path: Path, override: str, changed: dict[str, int]
) -> None:
    write_run("a", measured=counts(1, 0.4))
    write_run("b", override, measured=counts(2, 0.2, **changed))
    tables = compared(tmp_path / "outputs").tables
    assert [len(table.rows) for table in tables] == [1, 1]
    assert tables[0].title != tables[1].title


def served(directory: Path, concurrencies: list[int]) -> None:
    """Make its evaluation one of vLLM: each of two k at each number of requests at a time."""
    file = directory / "evaluation.json"
    found = json.loads(file.read_text())
    prompts = found.pop("per_prompt")
    ids = [{"id": prompt["id"], "tokens": prompt["tokens"]} for prompt in prompts]
    found["measured"] = [
        {
            **{"prompts": "chat", "length": None, "k": k, "concurrency": at_a_time, "num_prompts": len(prompts)},
            **{"tau": found["tau"] + at_a_time / 100, "acceptance": found["acceptance"], "speedup": 2 - at_a_time / 10},
            "per_prompt": prompts if at_a_time == 1 else ids,
        }
        for k in (3, 5)
        for at_a_time in concurrencies
    ]
    file.write_text(json.dumps(found))


def test_a_servers_measurements_are_a_table_for_each_k_with_each_speed(write_run: WriteRun, tmp_path: Path) -> None:
    for name, share in (("a", 0.4), ("b", 0.2)):
        served(write_run(name, measured=counts(len(name), share)), [1, 8])
    tables = compared(tmp_path / "outputs").tables
    assert [table.title.split(",")[0] for table in tables] == ["k=3", "k=5"]
    best = tables[0].rows[0]
    assert best.of.tau == pytest.approx(best.entry.evaluation["tau"] + 0.01)
    assert best.of.speedups == {1: 1.9, 8: 1.2}
    assert best.interval is not None
    names = [column.name for column in columns(tables[0])]
    assert "speed-up, 1 at a time" in names
    assert "speed-up, 8 at a time" in names


def test_without_counts_by_prompt_nothing_is_said_of_how_sure_it_is(write_run: WriteRun, tmp_path: Path) -> None:
    for name, share in (("a", 0.4), ("b", 0.2)):
        served(write_run(name, measured=counts(len(name), share)), [4])
    table = compared(tmp_path / "outputs").tables[0]
    assert table.rows[0].interval is None
    assert "how sure that is can't be said" in table.verdict
    assert "4 at a time, beside" in table.title


def test_another_verifier_of_the_same_name_is_another_setting_and_the_titles_say_so(
    write_run: WriteRun, tmp_path: Path
) -> None:
    write_run("a", measured=counts(1, 0.4), weights="aaaa")
    write_run("b", measured=counts(2, 0.2), weights="bbbb")
    titles = [table.title for table in compared(tmp_path / "outputs").tables]
    assert titles[0].endswith("beside smollm2_135m, verifier aaaa")
    assert titles[1].endswith("beside smollm2_135m, verifier bbbb")


def test_what_was_not_measured_is_ranked_apart_by_its_estimate(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    write_run("b", tau_sim=1.7)
    write_run("c", tau_sim=1.9)
    write_run("d", "training.unroll_steps=5", tau_sim=2.5)
    tables = compared(tmp_path / "outputs").tables
    assert [(table.measure, len(table.rows)) for table in tables] == [("tau", 1), ("tau_sim", 2), ("tau_sim", 1)]
    assert tables[1].title == "3 unroll steps, held-out text of demo, beside smollm2_135m"
    assert (
        "c is ahead of b by 0.20 tau_sim: estimated teacher-forced on held-out text, not measured" in tables[1].verdict
    )


def test_names_places_and_devices_are_not_what_was_varied(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", "trainer.devices=1", "data.path=/x/one.jsonl", measured=counts(1, 0.4))
    options = ["trainer.timeout_seconds=9", "data.path=/y/one.jsonl", "training.log_every_n_steps=7", "group=g"]
    options += ["training.keep_last=9", "capture.workers=2", "sweep.slots=2"]
    write_run("b", *options, "draft.layer_ids=[1,2,3]", measured=counts(2, 0.2))
    assert varied_keys(read_entries([str(tmp_path / "outputs")])) == ["draft.layer_ids"]
    write_run("c", "verifier=tiny_llama", measured=counts(3, 0.2))
    keys = varied_keys(read_entries([str(tmp_path / "outputs")]))
    assert keys[0] == "verifier.name"
    assert not any(key.startswith("verifier.") for key in keys[1:])


def test_a_draft_that_was_only_measured_says_nothing_of_a_training(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", "optimizer.lr=1e-3", measured=counts(1, 0.4))
    write_run("b", "optimizer.lr=3e-3", measured=counts(2, 0.3))
    given = write_run("c", "optimizer.lr=9", "draft.num_layers=4", "draft.init=/x/theirs", measured=counts(3, 0.35))
    (given / "identity.yaml").rename(given / "measurement.yaml")
    (given / "measurement.yaml").write_text("tokens: null\n")
    (given / "metrics.csv").unlink()
    [table] = compared(tmp_path / "outputs").tables
    assert table.keys == ["optimizer.lr"]
    assert {row.entry.name: list(row.varied) for row in table.rows} == {"a": ["0.001"], "b": ["0.003"], "c": ["-"]}


def test_a_job_that_failed_is_a_row_with_its_reason(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("sweep/a", "optimizer.lr=1e-3", measured=counts(1, 0.4))
    write_run("sweep/running", "optimizer.lr=3e-3", measured=None)
    jobs = [
        {"name": "sweep/a", "overrides": {"optimizer.lr": "1e-3"}, "state": "done"},
        {"name": "sweep/b", "overrides": {"optimizer.lr": "1e9"}, "state": "failed", "reason": "step 3: loss nan"},
        {"name": "sweep/running", "overrides": {"optimizer.lr": "3e-3"}, "state": "running", "reason": ""},
    ]
    (tmp_path / "outputs/sweep/sweep.json").write_text(json.dumps({"name": "sweep", "jobs": jobs}))
    found = compared(tmp_path / "outputs" / "sweep")
    assert [len(table.rows) for table in found.tables] == [1]
    assert {entry.name.rpartition("/")[2]: entry.problem for entry in found.without_result} == {
        "b": "failed: step 3: loss nan",
        "running": "running",
    }
    assert "step 3: loss nan" in as_markdown(found)
    lines = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert lines[-1]["problem"]
    assert any(line["config:optimizer.lr"] == "1000000000.0" for line in lines)


def test_files_have_the_numbers_in_full(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", "optimizer.lr=1e-3", measured=counts(1, 0.4))
    write_run("b", "optimizer.lr=3e-3", measured=counts(2, 0.2))
    found = compared(tmp_path / "outputs")
    best = found.tables[0].rows[0]
    lines = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert float(lines[0]["tau"]) == best.of.tau
    assert (lines[0]["run"], lines[0]["tokens"], lines[0]["config:optimizer.lr"]) == ("a", "30000", "0.001")
    [table] = json.loads(as_json(found))["tables"]
    assert table["rows"][0]["interval"] == list(best.interval or ())
    assert table["setting"]["k"] == 3
    markdown = as_markdown(found)
    assert "| # | run | optimizer.lr | tau | 95 % CI |" in markdown
    assert "All: 30k tokens, 7.45M parameters." in markdown


def test_a_narrow_terminal_goes_without_what_can_be_missed(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    kept, left_out = fitting(columns(compared(tmp_path / "outputs").tables[0]), 60, [], "tau")
    assert [column.name for column in kept][:3] == ["run", "tau", "95 % CI"]
    assert "parameters" in left_out


def test_places_with_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EyasError, match="holds no run; expected run directories"):
        read_entries([str(tmp_path / "empty")])
    with pytest.raises(EyasError, match="there is no such directory"):
        read_entries([str(tmp_path / "nowhere")])
    with pytest.raises(EyasError, match=r"expected wandb:ENTITY/PROJECT"):
        read_entries(["wandb:alone"])
    (tmp_path / "empty" / "sweep.json").write_text("[]")
    with pytest.raises(EyasError, match=r"sweep.json is no list of a sweep's jobs"):
        read_entries([str(tmp_path / "empty")])


def test_a_run_that_can_not_be_read_is_a_row_and_no_end(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    broken = write_run("b", measured=counts(2, 0.4))
    (broken / "evaluation.json").write_text('{"asked": ')
    found = compared(tmp_path / "outputs")
    assert len(found.tables[0].rows) == 1
    assert found.without_result[0].problem.startswith("can't be read: Expecting value")


def test_the_command(write_run: WriteRun, tmp_path: Path) -> None:
    write_run("a", measured=counts(1, 0.4))
    write_run("b", measured=counts(2, 0.2))
    done = run("-m", "eyas.cli.main", "compare", str(tmp_path / "outputs"), "--csv", str(tmp_path / "new" / "x.csv"))
    assert done.returncode == 0, done.stderr
    assert "a beats b by" in done.stdout
    assert (tmp_path / "new" / "x.csv").exists()
    done = run("-m", "eyas.cli.main", "compare", str(tmp_path / "outputs"), "--pdf", "x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unrecognized arguments: --pdf x" in done.stderr
