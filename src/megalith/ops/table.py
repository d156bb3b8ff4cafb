"""The table of operators: each native function, the facade that calls it, and its plain twin.

`tests/architecture` holds this table to be complete: no exported function without a row, no row without a
property test.
"""

from __future__ import annotations

from typing import NamedTuple


class Operator(NamedTuple):
    name: str
    """What the operator is called in `tests/parity/test_<name>.py`."""
    native: tuple[str, ...]
    """Exported functions of csrc/ behind it."""
    facade: str
    """module:function that callers use."""
    twin: str
    """module:function that is the truth."""
    torch_name: str | None
    """Its name in torch's dispatcher, or None for an operator on bytes and numpy arrays."""


OPERATORS = (
    Operator(
        name="first_out_of_range",
        native=("mg_first_out_of_range",),
        facade="megalith.ops.indices:first_out_of_range",
        twin="megalith.ops.indices:first_out_of_range_twin",
        torch_name="megalith::first_out_of_range",
    ),
)

# Exported, but not operators: loading, threads, what the processor offers.
PLUMBING = ("mg_abi_version", "mg_simd_level", "mg_use_torch_threads", "mg_set_num_threads", "mg_num_threads")
