"""`megalith export --tune` and `--check`: backends on the folder of a frozen model."""

from megalith.cli.export_tune.folders import TuneOptions, check_folder, tune_folder

__all__ = ["TuneOptions", "check_folder", "tune_folder"]
