"""The table of operators: each native function, the facade that calls it, and its plain twin.

`tests/architecture` holds this table to be complete: no exported function without a row, no row without a
property test.
"""

from __future__ import annotations

from typing import NamedTuple


class Operator(NamedTuple):
    """A native operator, where it is called and what it is held against."""

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
        facade="megalith.ops.embedding.operators:embedding_forward",
        twin="megalith.ops.embedding.twin:embedding_forward_twin",
        torch_name="megalith::embedding_forward",
    ),
    Operator(
        name="embedding_sequence",
        native=("mg_embedding_forward",),
        facade="megalith.ops.embedding.operators:embedding_sequence",
        twin="megalith.ops.embedding.twin:embedding_sequence_twin",
        torch_name="megalith::embedding_sequence",
    ),
    Operator(
        name="embedding_backward",
        native=("mg_embedding_backward",),
        facade="megalith.ops.optimizer.backward:embedding_backward_",
        twin="megalith.ops.optimizer.backward_twin:embedding_backward_twin_",
        torch_name="megalith::embedding_backward_",
    ),
    Operator(
        name="catch_up_rows",
        native=("mg_catch_up_rows",),
        facade="megalith.ops.optimizer.catch_up:catch_up_rows_",
        twin="megalith.ops.optimizer.catch_up:catch_up_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="column_sharded_update",
        native=(
            "mg_column_sharded_create",
            "mg_column_sharded_find_rows",
            "mg_column_sharded_row_norms",
            "mg_column_sharded_finish",
            "mg_column_sharded_destroy",
        ),
        facade="megalith.ops.optimizer.column_sharded:ColumnShardedUpdate",
        twin="megalith.ops.optimizer.column_sharded_twin:ColumnShardedUpdateTwin",
        torch_name=None,
    ),
    Operator(
        name="dot_interaction",
        native=("mg_dot_interaction", "mg_dot_interaction_backward"),
        facade="megalith.ops.interaction.dot:dot_interaction",
        twin="megalith.ops.interaction.dot_twin:dot_interaction_twin",
        torch_name="megalith::dot_interaction",
    ),
    Operator(
        name="sample_weight_gradient",
        native=("mg_sample_weight_gradient",),
        facade="megalith.ops.embedding.operators:sample_weight_gradient",
        twin="megalith.ops.embedding.twin:sample_weight_gradient_twin",
        torch_name="megalith::sample_weight_gradient",
    ),
    Operator(
        name="lookup_fault",
        native=("mg_lookup_fault",),
        facade="megalith.ops.embedding.index_check:lookup_fault",
        twin="megalith.ops.embedding.index_check:lookup_fault_twin",
        torch_name=None,
    ),
    Operator(
        name="checked_copy",
        native=("mg_lookup_fault",),
        facade="megalith.ops.embedding.index_check:checked_copy",
        twin="megalith.ops.embedding.index_check:checked_copy_twin",
        torch_name=None,
    ),
    Operator(
        name="copy_columns",
        native=("mg_copy_columns",),
        facade="megalith.ops.sharding.copy_columns:copy_columns",
        twin="megalith.ops.sharding.copy_columns:copy_columns_twin",
        torch_name=None,
    ),
    Operator(
        name="reinsert_tables",
        native=("mg_reinsert_tables",),
        facade="megalith.ops.sharding.reinsertion:reinsert_tables",
        twin="megalith.ops.sharding.reinsertion_twin:reinsert_tables_twin",
        torch_name=None,
    ),
    Operator(
        name="bucketize_rows",
        native=("mg_bucketize_rows",),
        facade="megalith.ops.sharding.bucketize:bucketize_rows",
        twin="megalith.ops.sharding.bucketize:bucketize_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="parse_delimited",
        native=("mg_parse_delimited",),
        facade="megalith.ops.text.rows:parse_delimited",
        twin="megalith.ops.text.rows_twin:parse_delimited_twin",
        torch_name=None,
    ),
    Operator(
        name="parse_entries",
        native=("mg_parse_entries",),
        facade="megalith.ops.text.rows:parse_entries",
        twin="megalith.ops.text.rows_twin:parse_entries_twin",
        torch_name=None,
    ),
    Operator(
        name="csv_whole_rows",
        native=("mg_csv_whole_rows",),
        facade="megalith.ops.text.csv:csv_whole_rows",
        twin="megalith.ops.text.csv_twin:csv_whole_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="parse_csv",
        native=("mg_parse_csv",),
        facade="megalith.ops.text.csv:parse_csv",
        twin="megalith.ops.text.csv_twin:parse_csv_twin",
        torch_name=None,
    ),
    Operator(
        name="token_keys",
        native=("mg_token_keys",),
        facade="megalith.ops.text.keys:token_keys",
        twin="megalith.ops.text.keys_twin:token_keys_twin",
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
        facade="megalith.ops.text.keys:KeyCounter",
        twin="megalith.ops.text.keys_twin:count_keys_twin",
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
        facade="megalith.ops.text.keys:KeyLookup",
        twin="megalith.ops.text.keys_twin:map_keys_twin",
        torch_name=None,
    ),
    Operator(
        name="hash_keys",
        native=("mg_hash_keys",),
        facade="megalith.ops.text.keys:hash_keys",
        twin="megalith.ops.text.keys_twin:hash_keys_twin",
        torch_name=None,
    ),
    Operator(
        name="start_values",
        native=("mg_start_values",),
        facade="megalith.ops.stores.start_values:start_values_",
        twin="megalith.ops.stores.start_values:start_values_twin",
        torch_name=None,
    ),
    Operator(
        name="start_rows",
        native=("mg_start_rows",),
        facade="megalith.ops.stores.start_rows:start_rows_",
        twin="megalith.ops.stores.start_rows:start_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="tiered_rows",
        native=(
            "mg_tiered_create",
            "mg_tiered_resolve",
            "mg_tiered_expect",
            "mg_tiered_arrive",
            "mg_tiered_release",
            "mg_tiered_flush",
            "mg_tiered_files",
            "mg_tiered_open",
            "mg_tiered_keep",
            "mg_tiered_drop",
            "mg_tiered_load",
            "mg_tiered_read",
            "mg_tiered_scan",
            "mg_tiered_statistics",
            "mg_tiered_destroy",
        ),
        facade="megalith.ops.stores.tiered_rows:TieredRows",
        twin="megalith.ops.stores.tiered_rows_twin:TieredRowsTwin",
        torch_name=None,
    ),
    Operator(
        name="id_map",
        native=(
            "mg_ids_create",
            "mg_ids_resolve",
            "mg_ids_expire",
            "mg_ids_change_bound",
            "mg_ids_changes",
            "mg_ids_scan",
            "mg_ids_load",
            "mg_ids_resume",
            "mg_ids_counter",
            "mg_ids_statistics",
            "mg_ids_scratch_bytes",
            "mg_ids_clear",
            "mg_ids_destroy",
        ),
        facade="megalith.ops.ids.id_map:IdMap",
        twin="megalith.ops.ids.id_map_twin:IdMapTwin",
        torch_name=None,
    ),
    Operator(
        name="chunked_rows",
        native=(
            "mg_chunks_create",
            "mg_chunks_pool",
            "mg_chunks_map_rows",
            "mg_chunks_resolve",
            "mg_chunks_rewrite",
            "mg_chunks_compact",
            "mg_chunks_scale_utilities",
            "mg_chunks_ids",
            "mg_chunks_masks",
            "mg_chunks_norms",
            "mg_chunks_read",
            "mg_chunks_load",
            "mg_chunks_statistics",
            "mg_chunks_destroy",
        ),
        facade="megalith.ops.chunks.chunked_rows:ChunkedRows",
        twin="megalith.ops.chunks.chunked_rows_twin:ChunkedRowsTwin",
        torch_name=None,
    ),
    Operator(
        name="chunked_lookup",
        native=("mg_embedding_forward", "mg_sample_weight_gradient"),
        facade="megalith.ops.embedding.native_tables:NativeTables",
        twin="megalith.ops.chunks.kernels_twin:chunked_forward_twin",
        torch_name=None,
    ),
    Operator(
        name="chunked_backward",
        native=("mg_embedding_backward",),
        facade="megalith.ops.embedding.native_tables:NativeTables",
        twin="megalith.ops.chunks.kernels_twin:chunked_backward_twin_",
        torch_name=None,
    ),
    Operator(
        name="candidate_sketch",
        native=("mg_sketch_add", "mg_sketch_remove", "mg_sketch_scale"),
        facade="megalith.ops.chunks.sketch:CandidateSketch",
        twin="megalith.ops.chunks.sketch_twin:CandidateSketchTwin",
        torch_name=None,
    ),
    Operator(
        name="chunk_ranking",
        native=(
            "mg_ranking_create",
            "mg_ranking_sums",
            "mg_ranking_score",
            "mg_ranking_histogram",
            "mg_ranking_changes",
            "mg_ranking_apply",
            "mg_ranking_forget",
            "mg_ranking_outline_changes",
            "mg_ranking_destroy",
        ),
        facade="megalith.ops.chunks.ranking:Ranking",
        twin="megalith.ops.chunks.ranking_twin:RankingTwin",
        torch_name=None,
    ),
    Operator(
        name="frozen_rows",
        native=("mg_frozen_encode",),
        facade="megalith.ops.frozen.encode:encode_rows",
        twin="megalith.ops.frozen.encode_twin:encode_rows_twin",
        torch_name=None,
    ),
    Operator(
        name="frozen_lookup",
        native=("mg_frozen_create", "mg_frozen_lookup", "mg_frozen_id_bytes", "mg_frozen_destroy"),
        facade="megalith.ops.frozen.lookup:FrozenLookup",
        twin="megalith.ops.frozen.lookup_twin:frozen_lookup_twin",
        torch_name=None,
    ),
    Operator(
        name="dense_program",
        native=("mg_dense_create", "mg_dense_run", "mg_dense_bytes", "mg_dense_destroy"),
        facade="megalith.ops.dense.program:DenseProgram",
        twin="megalith.ops.dense.program_twin:run_program_twin",
        torch_name=None,
    ),
    Operator(
        name="score_program",
        native=("mg_score_create", "mg_score_run", "mg_score_bytes", "mg_score_destroy"),
        facade="megalith.ops.serving.score:ScoreProgram",
        twin="megalith.ops.serving.score_twin:score_twin",
        torch_name=None,
    ),
)

# Exported, but not operators: loading, threads, what the processor, the memory and the system offer.
PLUMBING = (
    *("mg_abi_version", "mg_last_error", "mg_simd_level", "mg_simd_level_for", "mg_use_simd_level"),
    *("mg_use_torch_threads", "mg_set_num_threads", "mg_num_threads"),
    *(
        "mg_advise_huge_pages",
        "mg_random_row_read",
        "mg_random_row_update",
        "mg_packed_row_read",
        "mg_disk_probe",
    ),
)
