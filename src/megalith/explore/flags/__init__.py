"""A plan as files that its trainer runs: Megatron-LM arguments and a torchtitan configuration.

Argument names are those of the two projects at the versions named in each module; what a trainer cannot
express is said in the file, one comment line for each thing, and in `TrainerFile.missing`.

ranks.py       which rank each host must take so that axes lie where the plan has them
megatron.py    a shell script around torchrun and pretrain_gpt.py
torchtitan.py  a TOML file, and the order of pipeline actions where torchtitan has no name for it
"""

from __future__ import annotations

from megalith.explore.flags.megatron import megatron_files
from megalith.explore.flags.ranks import TrainerFile
from megalith.explore.flags.torchtitan import torchtitan_files
from megalith.explore.job import Job, TransformerModel
from megalith.explore.prediction import Prediction

__all__ = ["TrainerFile", "megatron_files", "torchtitan_files", "trainer_files"]


def trainer_files(job: Job, prediction: Prediction) -> list[TrainerFile]:
    """Everything that runs this plan; nothing for recommendation models, which neither trainer has."""
    if not isinstance(job.model, TransformerModel):
        return []
    return [*megatron_files(job, prediction), *torchtitan_files(job, prediction)]
