"""How far backends are from the twins with layers in few bits, beside what rounding activations does at all.

    python benchmarks/backend_distances.py --models 5 --out benchmarks/results/backend-distances.json

Random models of every operation. The effect is the largest difference that rounded activations make to an
output; a distance is the largest difference of a backend's outputs from the twins', as a share of the effect.
`megalith.export.backends.tolerance` takes its factors from here.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from megalith.bench.runner import result, save_result
from megalith.export.backends.base import LoadSettings
from megalith.export.backends.conformance.findings import unit_of
from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.programs import weights_of
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.backends.programs import products_of
from megalith.export.backends.registry import usable_backends
from megalith.export.backends.tolerance import rounding_effect
from megalith.export.stored_weights import reduced_weights

PRECISIONS = (("bfloat16", "bfloat16"), ("int8", "u8s7"), ("int8", "u8s8"))
SAMPLES = 256


def distances(precision: str, products: str, seed: int) -> dict[str, Any]:
    """Of one random model: the effect of rounding by output, and each backend's share of it."""
    model = probe_model(precision, products)
    program = model.manifest.program
    weights = reduced_weights(program, weights_of(program, seed), products_of(model))
    model = replace(model, dense=weights)
    request = RequestMaker(model, "dense").request(SAMPLES, seed=seed)
    # Native has the twins' bits, and is quicker.
    wanted = NativeBackend().load(model, "dense", LoadSettings()).run(request)
    effect = rounding_effect(model)
    shares: dict[str, dict[str, float]] = {}
    for backend in usable_backends():
        if "dense" not in backend.parts or backend.name in ("native", "torch"):
            continue
        part = backend.load(model, "dense", LoadSettings())
        got = part.run(request)
        part.close()
        apart = {name: float((got[name] - truth).abs().max()) for name, truth in wanted.items()}
        shares[backend.name] = {
            name: apart[name] / unit_of(name, truth, program) / effect[name] for name, truth in wanted.items()
        }
    return {"precision": precision, "products": products, "seed": seed, "effect": effect, "shares": shares}


def main() -> None:
    """Measures some models of each precision and prints the largest share of each backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=5, help="of each precision")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = [distances(*kind, seed) for kind in PRECISIONS for seed in range(options.models)]
    for precision, products in PRECISIONS:
        own = [each for each in found if each["products"] == products]
        for name in own[0]["shares"]:
            largest = max(max(each["shares"][name].values()) for each in own)
            print(f"{precision} {products} {name}: {largest:.2g} of the effect at most", file=sys.stderr)
    settings = {"models": options.models, "samples": SAMPLES}
    if options.out:
        save_result(options.out, result("backend-distances", settings, {"models": found}, None))


if __name__ == "__main__":
    main()
