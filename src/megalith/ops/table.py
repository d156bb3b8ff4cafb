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
    """Its name in torch's dispatcher, or None for one that no graph holds."""


OPERATORS = (
    Operator(
        name="embedding_forward",
        native=("mg_embedding_forward",),
        facade="megalith.ops.embedding:embedding_forward",
        twin="megalith.ops.embedding_twin:embedding_forward_twin",
        torch_name="megalith::embedding_forward",
    ),
    Operator(
        name="embedding_sequence",
        native=("mg_embedding_forward",),
        facade="megalith.ops.embedding:embedding_sequence",
        twin="megalith.ops.embedding_twin:embedding_sequence_twin",
        torch_name="megalith::embedding_sequence",
    ),
    Operator(
        name="embedding_backward",
        native=("mg_embedding_backward",),
        facade="megalith.ops.embedding:embedding_backward_",
        twin="megalith.ops.embedding_twin:embedding_backward_twin_",
        torch_name="megalith::embedding_backward_",
    ),
    Operator(
        name="coupled_update",
        native=(
            "mg_coupled_create",
            "mg_coupled_find",
            "mg_coupled_add_up",
            "mg_coupled_finish",
            "mg_coupled_destroy",
        ),
        facade="megalith.ops.coupled:CoupledUpdate",
        twin="megalith.ops.coupled_twin:CoupledUpdateTwin",
        torch_name=None,
    ),
    Operator(
        name="dot_interaction",
        native=("mg_dot_interaction", "mg_dot_interaction_backward"),
        facade="megalith.ops.interaction:dot_interaction",
        twin="megalith.ops.interaction:dot_interaction_twin",
        torch_name="megalith::dot_interaction",
    ),
    Operator(
        name="sample_weight_gradient",
        native=("mg_sample_weight_gradient",),
        facade="megalith.ops.embedding:sample_weight_gradient",
        twin="megalith.ops.embedding_twin:sample_weight_gradient_twin",
        torch_name="megalith::sample_weight_gradient",
    ),
    Operator(
        name="lookup_fault",
        native=("mg_lookup_fault",),
        facade="megalith.ops.indices:lookup_fault",
        twin="megalith.ops.indices:lookup_fault_twin",
        torch_name=None,
    ),
    Operator(
        name="checked_copy",
        native=("mg_lookup_fault",),
        facade="megalith.ops.indices:checked_copy",
        twin="megalith.ops.indices:checked_copy_twin",
        torch_name=None,
    ),
    Operator(
        name="copy_columns",
        native=("mg_copy_columns",),
        facade="megalith.ops.columns:copy_columns",
        twin="megalith.ops.columns:copy_columns_twin",
        torch_name=None,
    ),
    Operator(
        name="share_rows",
        native=("mg_share_rows",),
        facade="megalith.ops.sharing:share_rows",
        twin="megalith.ops.sharing:share_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="parse_delimited",
        native=("mg_parse_delimited",),
        facade="megalith.ops.text:parse_delimited",
        twin="megalith.ops.text_twins:parse_delimited_twin",
        torch_name=None,
    ),
    Operator(
        name="parse_entries",
        native=("mg_parse_entries",),
        facade="megalith.ops.text:parse_entries",
        twin="megalith.ops.text_twins:parse_entries_twin",
        torch_name=None,
    ),
    Operator(
        name="token_keys",
        native=("mg_token_keys",),
        facade="megalith.ops.text:token_keys",
        twin="megalith.ops.text_twins:token_keys_twin",
        torch_name=None,
    ),
    Operator(
        name="count_keys",
        native=(
            "mg_count_create",
            "mg_count_add",
            "mg_count_finish",
            "mg_count_num_spills",
            "mg_count_destroy",
        ),
        facade="megalith.ops.text:KeyCounter",
        twin="megalith.ops.text_twins:count_keys_twin",
        torch_name=None,
    ),
    Operator(
        name="map_keys",
        native=(
            "mg_lookup_create",
            "mg_lookup_bytes",
            "mg_lookup_insert",
            "mg_lookup_map",
            "mg_lookup_destroy",
        ),
        facade="megalith.ops.text:KeyLookup",
        twin="megalith.ops.text_twins:map_keys_twin",
        torch_name=None,
    ),
    Operator(
        name="hash_keys",
        native=("mg_hash_keys",),
        facade="megalith.ops.text:hash_keys",
        twin="megalith.ops.text_twins:hash_keys_twin",
        torch_name=None,
    ),
)

# Exported, but not operators: loading, threads, what the processor, the memory and the system offer.
PLUMBING = (
    *("mg_abi_version", "mg_last_error", "mg_simd_level", "mg_simd_level_for"),
    *("mg_use_torch_threads", "mg_set_num_threads", "mg_num_threads"),
    *("mg_advise_huge_pages", "mg_random_row_read", "mg_random_row_update"),
)
