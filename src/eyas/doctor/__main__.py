"""`python -m eyas.doctor CONFIG`: every check, as a table and as outputs/doctor.json."""

import sys
from pathlib import Path

from eyas.artifact import write_file
from eyas.config import load_config
from eyas.doctor.data_checks import examine_data
from eyas.doctor.draft_checks import examine_export, examine_handover
from eyas.doctor.facts_checks import examine_facts
from eyas.doctor.findings import Verdict, print_table, to_json
from eyas.doctor.model_checks import examine_model
from eyas.doctor.training_checks import examine_training
from eyas.errors import EyasError
from eyas.process import EXPLAINED, child_main
from eyas.stages import verifier_facts
from eyas.verifier.library import read_library
from eyas.verifier.locate import locate


def main(config_file: Path) -> None:
    config = load_config(config_file)
    checkpoint = locate(config.verifier)
    findings = examine_facts(config, checkpoint, read_library())
    try:
        facts = verifier_facts(config)
    except EyasError:
        pass  # it is a row already
    else:
        data = [] if config.data.name == "none" else examine_data(config)
        findings += [*data, *examine_training(config), *examine_model(config, checkpoint, facts)]
        findings += [*examine_handover(config), *examine_export(config)]
    print_table(findings)
    report = Path(config.outputs) / "doctor.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    write_file(report, to_json(findings))
    failed = [it.name for it in findings if it.verdict is Verdict.fail]
    warned = sum(it.verdict is Verdict.warn for it in findings)
    print(f"{config.verifier.name}: {len(findings)} checks, {len(failed)} failed, {warned} warnings ({report})")
    if failed:
        sys.exit(EXPLAINED)


if __name__ == "__main__":
    child_main(main)
