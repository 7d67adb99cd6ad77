"""`python -m counted RUN_DIR`: a rank of a training that prints which collectives each step has used."""

import json
from collections import Counter

from torch.profiler import profile

from eyas.process import child_main
from eyas.training import __main__, fit
from eyas.training.module import DraftTraining


class Counted(DraftTraining):
    def training_step(self, batch, step):
        with profile() as used:
            super().training_step(batch, step)
        counts = Counter(event.name for event in used.events() if event.name.startswith("c10d::"))
        if self.trainer.is_global_zero:
            print("used", json.dumps(counts), flush=True)


fit.DraftTraining = Counted

if __name__ == "__main__":
    child_main(__main__.main)
