"""A backend of Megalith in a package of its own: all of a frozen model in numpy.

It knows the interface, the lowering of programs and the layout of frozen rows, as
docs/guides/backends.md describes them, and nothing else of Megalith.
"""

import numpy as np
import torch

from megalith.export.backends.base import Backend, LoadedPart
from megalith.export.backends.graphs.lowering import lower
from megalith.export.backends.kernels.tables import PartLookups, table_bytes
from megalith.export.backends.programs import products_of, weight_bytes
from megalith.export.program import DENSE, EMBEDDED
from megalith_numpy.graph import NumpyGraph
from megalith_numpy.rows import NumpyLookup


class NumpyBackend(Backend):
    """Runs every part."""

    name = "numpy"
    parts = ("lookups", "dense", "whole")
    exact = frozenset({"lookups", "int8"})

    def load(self, model, part, settings):
        self.check_load(part, settings)
        return NumpyPart(model, part, settings)


class NumpyPart(LoadedPart):
    """Tables as they lie in the file, and a list of functions for the program."""

    def __init__(self, model, part, settings):
        super().__init__(model.manifest, part, settings)
        self._lookups = self._graph = None
        self._bytes = {}
        if part != "dense":
            self._lookups = PartLookups(model, self.inputs, NumpyLookup)
            self._bytes["tables"] = table_bytes(model, self.inputs)
        if part != "lookups":
            program, weights = model.manifest.program, model.weights()
            self._graph = NumpyGraph()
            lower(program, weights, products_of(model), self._graph)
            self._bytes["dense"] = weight_bytes(program, weights)

    def compute(self, batch, dense, ids):
        pooled = ids.pooled if self._lookups is None else self._lookups(batch, ids)
        if self._graph is None:
            return {EMBEDDED: pooled.to(getattr(torch, self.settings.pooled))}
        given = {DENSE: dense, EMBEDDED: pooled}
        with np.errstate(all="ignore"):
            found = self._graph.run({name: one.numpy() for name, one in given.items() if one is not None})
        return {name: torch.from_numpy(np.ascontiguousarray(out)) for name, out in found.items()}

    def bytes(self):
        return {name: 0 if self.closed else count for name, count in self._bytes.items()}

    def release(self):
        self._lookups = self._graph = None
