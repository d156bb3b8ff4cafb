"""Programs of float32 by the products of training: option `dense=torch` of the native backend, and the gate.

Torch adds up in an order of its own, which depends on the batch. Whoever scores batches of the sizes that the
run did gets the run's bits; `DenseProgram` is within float32's rounding of them, for any batch alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.interpret import run_program
from megalith.export.program import DENSE, EMBEDDED, Linear, ModelProgram
from megalith.metrics.scores import scores_of


class TrainedProducts:
    """A program in plain torch."""

    def __init__(self, program: ModelProgram, weights: Mapping[str, Tensor]) -> None:
        if is_reduced(program):
            raise ConfigError(
                "Option dense=torch of native runs layers of float32, and this model has some in few bits; "
                "leave it out."
            )
        self._program, self._weights = program, weights

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """[samples, tasks] of numbers [samples, numbers] and pooled vectors [samples, columns]."""
        with torch.inference_mode():
            return run_program(self._program, self._weights, dense, pooled)

    def served(self, logits: Tensor) -> Tensor:
        """What is served of logits; probabilities are the bits that a run writes."""
        columns = [
            torch.from_numpy(scores_of(logits[:, column]))
            if task.kind == "probability"
            else logits[:, column]
            for column, task in enumerate(self._program.outputs)
        ]
        return torch.stack(columns, dim=1)

    def run(self, *inputs: Tensor) -> Tensor:
        """As `DenseProgram.run`: inputs in the order of the program, outputs as they are served."""
        given = dict(zip(self._program.inputs, inputs, strict=True))
        nothing = torch.empty(len(inputs[0]), 0)
        return self.served(self.logits(given.get(DENSE, nothing), given.get(EMBEDDED, nothing)))

    def bytes(self) -> dict[str, int]:
        """Of the weights, which lie as they were read."""
        held = (self._weights[name] for name in self._program.weights)
        return {"weights": sum(each.numel() * each.element_size() for each in held), "workspaces": 0}


def is_reduced(program: ModelProgram) -> bool:
    """Whether any layer is in few bits."""
    return any(isinstance(each, Linear) and each.precision != "float32" for each in program.operations)
