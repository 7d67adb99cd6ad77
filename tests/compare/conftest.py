from compare_runs import write_run

__all__ = ["write_run"]
