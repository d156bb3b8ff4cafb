"""Fits the profiles of src/megalith/explore/stacks and the devices' shares in cost/calibration.yaml.

    python benchmarks/fit_stacks.py              minutes; prints constants and errors
    python benchmarks/fit_stacks.py --write      also writes profiles, shares and validation/left_out.json
    python benchmarks/fit_stacks.py --left-out   no fit: the left-out errors around the constants as they are

All steps of llm_training.csv and measured_steps.jsonl together: each stack's own constants, and for each
generation of devices the shares of peak of products (16 bits, FP8) and of fused attention, which all stacks
share. Then the fit without each model, and what that predicts of the model. docs/decisions/0034-stacks.md has
the tables.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from megalith.cost import calibration as shares
from megalith.explore import intervals
from megalith.explore.calibrate.fit import FittedConstant, StepFit, Values, Vector, stack_constants
from megalith.explore.calibrate.left_out import left_out_errors
from megalith.explore.stacks import load_stack
from megalith.explore.stacks import profile as stacks
from megalith.explore.stacks.profile import ConstantPrior
from megalith.explore.validation.measurements import shipped_steps

KEPT = ("megatron-2021",)
"""Stacks whose constants are those of decision 6, fitted on every second row: tried, not fitted again."""
ROOT = Path(__file__).parent.parent / "src/megalith"
DEVICES = {
    ("ampere", "attention_fraction"): ConstantPrior(0.52, 0.15, 0.1, 0.9),
    ("hopper", "gemm_fraction"): ConstantPrior(0.66, 0.05, 0.4, 0.95),
    ("hopper", "gemm_fraction_fp8"): ConstantPrior(0.69, 0.06, 0.3, 0.95),
    ("hopper", "attention_fraction"): ConstantPrior(0.46, 0.12, 0.1, 0.9),
    ("blackwell", "gemm_fraction"): ConstantPrior(0.57, 0.06, 0.4, 0.95),
    ("blackwell", "gemm_fraction_fp8"): ConstantPrior(0.57, 0.06, 0.3, 0.95),
    ("blackwell", "attention_fraction"): ConstantPrior(0.42, 0.12, 0.1, 0.9),
}
"""Shares of peak that are fitted for all stacks together; those of products on Ampere are decision 6's."""


def use_devices(values: Values) -> None:
    """Lets the cost model use these shares."""
    entries, changed = shares._entries(), False
    for (owner, name), value in values.items():
        if (owner, name) in DEVICES and entries[owner].get(name) != value:
            entries[owner][name], changed = value, True
    if changed:
        shares.calibration.cache_clear()
        stacks._constants.cache_clear()


def write(values: Values) -> None:
    """Puts the constants into the profiles and the devices' file, as text, so that comments stay."""
    for (owner, name), value in values.items():
        text = f"{value:.3g}"
        if (owner, name) in DEVICES:
            path = ROOT / "cost/calibration.yaml"
            pattern = rf"(^{owner}:\n(?:  .*\n)*?  {name}: )\S+"
        else:
            path = ROOT / f"explore/stacks/{owner}.yaml"
            pattern = rf"(\b{name}: )[-+.e0-9]+"
        content, count = re.subn(pattern, rf"\g<1>{text}", path.read_text(), count=1, flags=re.MULTILINE)
        if not count:
            raise SystemExit(f"{path} has no {name} of {owner}.")
        path.write_text(content)


def fit_all(rounds: int) -> tuple[StepFit, Values]:
    """Every stack but the one of decision 6, and the devices' shares; with `rounds` 0 as they are."""
    steps = [step for step in shipped_steps() if step.stack not in KEPT]
    owners = {load_stack(step.stack).fitted_as for step in steps}
    constants = stack_constants(sorted(owners))
    constants += [FittedConstant(owner, name, prior) for (owner, name), prior in DEVICES.items()]
    fit = StepFit(steps, constants, use_devices)
    values = fit.start() | {key: shares._entries()[key[0]][key[1]] for key in DEVICES}
    return fit, fit.run(values, rounds=rounds) if rounds else values


def kept_fit() -> tuple[StepFit, Values]:
    """The stack of decision 6, around the constants that it has."""
    fit = StepFit([step for step in shipped_steps() if step.stack in KEPT], stack_constants(KEPT))
    values = fit.start()
    fit.constants = [
        replace(one, prior=one.prior._replace(value=values[one.owner, one.name])) for one in fit.constants
    ]
    return fit, values


def main() -> None:
    """Fits everything, prints the errors by stack and family, and writes what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    fits = [fit_all(0 if arguments.left_out else arguments.rounds), kept_fit()]
    if not arguments.left_out:
        for (owner, name), value in fits[0][1].items():
            print(f"{owner:26} {name:22} {value:.3g}")
        if arguments.write:
            write(fits[0][1])
    listed = []
    for fit, values in fits:
        fitted, apart = fit.errors(values), left_out_errors(fit, values)
        _show(fit, fitted, apart)
        listed += [
            {
                "id": step.id,
                "kind": list(intervals.kind_of(fit.plans[step.id])),
                "model": step.model,
                "error": round(float(error), 4),
            }
            for step, error in zip(fit.steps, apart, strict=True)
        ]
    if arguments.write or arguments.left_out:
        lines = ",\n".join(json.dumps(row) for row in listed)
        intervals.FILE.write_text(f'{{"steps": [\n{lines}\n]}}\n')


def _show(fit: StepFit, fitted: Vector, apart: Vector) -> None:
    groups: dict[tuple[str, str], list[int]] = {}
    for index, step in enumerate(fit.steps):
        groups.setdefault((step.stack, step.family), []).append(index)
    for (stack, family), rows in sorted(groups.items()):
        one, other = (np.abs(np.expm1(errors[rows])) for errors in (fitted, apart))
        print(
            f"{stack:26} {family:36} {len(rows):3} rows: fitted {one.mean():6.1%}, "
            f"left out {other.mean():6.1%}, bias {np.expm1(apart[rows]).mean():+6.1%}, "
            f"worst {other.max():5.0%}"
        )


if __name__ == "__main__":
    main()
