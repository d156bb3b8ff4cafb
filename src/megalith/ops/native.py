"""Loads the native core: one shared library behind a C interface, with no torch and no Python symbol in it.

ctypes releases the interpreter lock around each call. A function that can fail returns a code, which is
checked here and nowhere else: no caller can forget to. `share_torch_threads` hands torch's own parallel_for
to the core, so that native operators and torch use one thread pool.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from megalith.core.errors import CacheFullError, MegalithError, NativeError, OutOfMemoryError, StorageError

ABI_VERSION = 28
"""That of csrc/abi.h; both are raised when a signature changes."""
ABI_DIGEST = "7a35eb065f51e8e8"
"""Of the signatures together with the version; `tests/architecture` says what to put here."""
SIMD_LEVELS = ("portable", "avx2", "avx512", "avx512vnni")
"""The builds of the kernels, the narrowest vector instructions first."""
CPU_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
"""What the choice of a level depends on, in the order of their bits."""

_OUT_OF_MEMORY, _STORAGE_FAILED, _CACHE_FULL = 1, 3, 4

_pointer, _int32, _int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_float, _text = ctypes.c_float, ctypes.c_char_p


class _Code(ctypes.c_int32):
    """The result of a function that may fail: 0, or why it did."""


# Every exported function: (result, arguments). The one place where signatures are repeated from csrc/.
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mg_abi_version": (_int32, ()),
    "mg_last_error": (_text, ()),
    "mg_simd_level": (_int32, ()),
    "mg_simd_level_for": (_int32, (ctypes.c_uint32,)),
    "mg_use_simd_level": (None, (_int32,)),
    "mg_use_torch_threads": (None, (_pointer, _pointer)),
    "mg_set_num_threads": (None, (_int32,)),
    "mg_num_threads": (_int32, ()),
    # Text: rows to columns, keys, counts and ids (ops/text).
    "mg_parse_delimited": (
        _Code,
        (_pointer, _int64, _int32, _pointer, _pointer, _int32, _float, _int64, *(_pointer,) * 5),
    ),
    "mg_parse_entries": (_Code, (_pointer, _int64, _int32, _int64, *(_pointer,) * 6)),
    "mg_csv_whole_rows": (_Code, (_pointer, _int64, _int32, _pointer)),
    "mg_parse_csv": (
        _Code,
        (_pointer, _int64, _int32, _pointer, _int32, _int32, _int64, *(_pointer,) * 5),
    ),
    "mg_token_keys": (_Code, (_pointer, _pointer, _int64, _pointer)),
    "mg_count_create": (_Code, (_int64, _int64, _text, _pointer)),
    "mg_count_add": (_Code, (_pointer, _int64, _pointer, _pointer, _int64)),
    "mg_count_finish": (_Code, (_pointer, _int64, _int64, _int64, _text, _pointer)),
    "mg_count_num_spills": (_int64, (_pointer,)),
    "mg_count_destroy": (None, (_pointer,)),
    "mg_lookup_create": (_Code, (_int64, _text, _pointer)),
    "mg_lookup_bytes": (_int64, (_int64,)),
    "mg_lookup_insert": (_Code, (_pointer, _pointer, _int64, _int64)),
    "mg_lookup_map": (_Code, (_pointer, _pointer, _int64, _pointer)),
    "mg_lookup_destroy": (None, (_pointer,)),
    "mg_hash_keys": (_Code, (_pointer, _int64, _int64, _pointer)),
    # Lookups (ops/embedding).
    "mg_embedding_forward": (
        _Code,
        (
            *(_pointer, _int64, *(_pointer,) * 2, _int32, *(_pointer,) * 2, _int64),
            *(_pointer, _int64, _int64, _pointer),
        ),
    ),
    "mg_sample_weight_gradient": (
        _Code,
        (_pointer, _int64, *(_pointer,) * 2, _int32, _pointer, _int64, _pointer, _int64, _pointer),
    ),
    "mg_lookup_fault": (
        _Code,
        (_pointer, _int32, _int64, _pointer, _int64, _pointer, _int64, _pointer, _int32, _pointer, _pointer),
    ),
    "mg_advise_huge_pages": (None, (_pointer, _int64)),
    # Backward passes fused with optimizers (ops/optimizer).
    "mg_embedding_backward": (
        _Code,
        (
            *(_pointer, _int64, _int64, *(_pointer,) * 4, _int32, *(_pointer,) * 2, _int64, _pointer, _int64),
            *(_pointer,) * 5,
        ),
    ),
    "mg_catch_up_rows": (
        _Code,
        (*(_int64,) * 2, *(_pointer,) * 5, _int32, *(_int64,) * 2, *(_pointer,) * 2, *(_int64,) * 2),
    ),
    "mg_column_sharded_create": (_Code, (_pointer, _int64, _int64, *(_pointer,) * 5, _int64, _pointer)),
    "mg_column_sharded_find_rows": (
        _Code,
        (*(_pointer,) * 2, _int32, *(_pointer,) * 2, _int64, _pointer, _int64, _pointer, _pointer),
    ),
    "mg_column_sharded_row_norms": (_Code, (_pointer,) * 3),
    "mg_column_sharded_finish": (_Code, (_pointer,) * 3),
    "mg_column_sharded_destroy": (None, (_pointer,)),
    # The dot interaction (ops/interaction).
    "mg_dot_interaction": (_Code, (_pointer, _pointer, _int64, _int64, _int64, _pointer)),
    "mg_dot_interaction_backward": (
        _Code,
        (_pointer, _pointer, _pointer, _int64, _int64, _int64, _pointer, _pointer),
    ),
    # Ids and vectors around an exchange (ops/sharding).
    "mg_copy_columns": (_Code, (*(_pointer,) * 3, *(_int64,) * 3, _pointer, _int64)),
    "mg_bucketize_rows": (
        _Code,
        (
            *(_pointer, _int32, *(_pointer,) * 2, _int64, _pointer, _int64),
            *(*(_pointer,) * 2, _int64, *(_pointer,) * 4),
        ),
    ),
    "mg_reinsert_tables": (_Code, (_pointer,) * 19),
    # Row pools over a disk (ops/stores).
    "mg_start_values": (_Code, (_pointer, _int64, _int64, _pointer)),
    "mg_start_rows": (_Code, (*(_pointer,) * 5, _int64)),
    "mg_tiered_create": (
        _Code,
        (_pointer, _text, _pointer, _int64, _pointer, _pointer, _int64, _pointer, _pointer),
    ),
    "mg_tiered_destroy": (None, (_pointer,)),
    "mg_tiered_resolve": (_Code, (_pointer, _pointer, _int64, _pointer, _int32, _pointer, _int64, _int32)),
    "mg_tiered_expect": (_Code, (_pointer, _pointer, _int64, _pointer, _int32, _int64)),
    "mg_tiered_arrive": (_Code, (_pointer, _int64)),
    "mg_tiered_release": (None, (_pointer, _int64)),
    "mg_tiered_flush": (_Code, (_pointer,) * 3),
    "mg_tiered_files": (_Code, (_pointer,) * 4),
    "mg_tiered_open": (_Code, (*(_pointer,) * 4, _int64)),
    "mg_tiered_keep": (_Code, (_pointer, _text)),
    "mg_tiered_drop": (_Code, (_pointer, _int64, _pointer, _int64)),
    "mg_tiered_load": (_Code, (_pointer, _int64, _pointer, _int64, _pointer)),
    "mg_tiered_read": (_Code, (_pointer, _int64, _pointer, _int64, _pointer)),
    "mg_tiered_scan": (_Code, (_pointer, _int64, *(_pointer,) * 3, _int64, _pointer)),
    "mg_tiered_statistics": (_Code, (_pointer, _pointer)),
    # Raw ids to rows (ops/ids).
    "mg_ids_create": (_Code, (_pointer, _pointer, _int64, _pointer)),
    "mg_ids_destroy": (None, (_pointer,)),
    "mg_ids_resolve": (
        _Code,
        (
            *(_pointer, _pointer, _int64, *(_pointer,) * 2, _int64),
            *(*(_pointer,) * 2, _int64, _int32, *(_pointer,) * 2),
        ),
    ),
    "mg_ids_expire": (_Code, (_pointer, _int64, _int64, *(_pointer,) * 4)),
    "mg_ids_change_bound": (_Code, (_pointer, _int64, _int64, _pointer)),
    "mg_ids_changes": (_Code, (_pointer,) * 4),
    "mg_ids_scan": (_Code, (_pointer, _int64, _pointer, _int64, *(_pointer,) * 6)),
    "mg_ids_load": (_Code, (_pointer, _int64, *(_pointer,) * 5, _int64, _pointer)),
    "mg_ids_resume": (_Code, (_pointer, _int64, _pointer)),
    "mg_ids_counter": (_Code, (_pointer, _int64, _pointer, _int64, _int32)),
    "mg_ids_statistics": (_Code, (_pointer, _int64, _pointer)),
    "mg_ids_scratch_bytes": (_Code, (_pointer, _pointer)),
    "mg_ids_clear": (_Code, (_pointer, _int64)),
    # Pools of chunked rows (ops/chunks).
    "mg_chunks_create": (_Code, (_pointer, _int64, _pointer, _int64, _pointer)),
    "mg_chunks_destroy": (None, (_pointer,)),
    "mg_chunks_pool": (_Code, (_pointer, _pointer)),
    "mg_chunks_map_rows": (_Code, (_pointer, _int64, _pointer, _int64)),
    "mg_chunks_resolve": (
        _Code,
        (
            *(_pointer, _pointer, _int64, _pointer, _int32, _pointer, _int32, *(_pointer,) * 3),
            _int32,
        ),
    ),
    "mg_chunks_rewrite": (_Code, (_pointer, _int64, *(_pointer,) * 4, _int64)),
    "mg_chunks_compact": (_Code, (_pointer,)),
    "mg_chunks_scale_utilities": (_Code, (_pointer, _int64, _float)),
    "mg_chunks_ids": (_Code, (_pointer, *(_int64,) * 3, *(_pointer,) * 2)),
    "mg_chunks_norms": (_Code, (_pointer, _int64, _pointer, _int64, _pointer)),
    "mg_chunks_masks": (_Code, (_pointer, _int64, _pointer, _int64, _pointer)),
    "mg_chunks_read": (_Code, (_pointer, _int64, _pointer, _int64, *(_pointer,) * 6)),
    "mg_chunks_load": (_Code, (_pointer, _int64, _pointer, _int64, *(_pointer,) * 6)),
    "mg_chunks_statistics": (_Code, (_pointer, _pointer)),
    "mg_sketch_add": (_Code, (_pointer, _int64, _pointer, _pointer, _float, _int64)),
    "mg_sketch_remove": (_Code, (_pointer, _pointer, _int64)),
    "mg_sketch_scale": (None, (_pointer, _float)),
    "mg_ranking_create": (_Code, (_pointer,) * 7),
    "mg_ranking_destroy": (None, (_pointer,)),
    "mg_ranking_sums": (_Code, (_pointer,) * 3),
    "mg_ranking_score": (_Code, (_pointer,) * 5),
    "mg_ranking_histogram": (_Code, (*(_pointer,) * 3, _int64, _int64, _pointer)),
    "mg_ranking_changes": (_Code, (*(_pointer,) * 3, _int64, _pointer)),
    "mg_ranking_apply": (_Code, (_pointer, _pointer, _pointer, _int64)),
    "mg_ranking_outline_changes": (None, (_pointer,) * 3),
    "mg_ranking_forget": (None, (_pointer,)),
    # Frozen rows (ops/frozen).
    "mg_frozen_encode": (_Code, (_pointer, *(_int64,) * 4, *(_pointer,) * 2)),
    "mg_frozen_create": (_Code, (_pointer, _int64, _pointer)),
    "mg_frozen_destroy": (None, (_pointer,)),
    "mg_frozen_id_bytes": (_int64, (_pointer,)),
    "mg_frozen_lookup": (
        _Code,
        (
            *(_pointer, _pointer, _int32, _int64, _pointer, _int32, *(_int64,) * 2),
            *(*(_pointer,) * 2, _int64, _pointer),
        ),
    ),
    # Dense parts of served models (ops/dense).
    "mg_dense_create": (
        _Code,
        (
            *(_pointer, _int64, _pointer, _int64, _pointer, _int64, _pointer, _int64, _pointer, _pointer),
            *(_int64, _pointer, _int64, _pointer),
        ),
    ),
    "mg_dense_destroy": (None, (_pointer,)),
    "mg_dense_run": (_Code, (_pointer, _pointer, _pointer, _int64, _int64, _pointer)),
    "mg_dense_bytes": (None, (_pointer, _pointer)),
    # Whole requests (ops/serving).
    "mg_score_create": (_Code, (_pointer, _pointer, *(_int64,) * 3, _pointer, _int64, _pointer)),
    "mg_score_destroy": (None, (_pointer,)),
    "mg_score_run": (
        _Code,
        (_pointer, _pointer, _pointer, _int32, _int64, _pointer, _int64, _int64, _pointer, _pointer),
    ),
    "mg_score_bytes": (_Code, (_pointer, _pointer)),
    # The machine's own speed (bench/embedding/roofline.py, ops/stores/disk_probe.py).
    "mg_disk_probe": (_Code, (_text, _pointer, _pointer, _pointer)),
    "mg_random_row_read": (_Code, (_pointer, _int64, _pointer, _int64, _int64, _int32, _pointer)),
    "mg_packed_row_read": (_Code, (_pointer, _int64, _pointer, *(_int64,) * 3, _int32, _pointer)),
    "mg_random_row_update": (_Code, (_pointer, _int64, _pointer, _int64, _int64, _int32)),
}


@cache
def library() -> ctypes.CDLL:
    """The loaded core, its version checked and its functions typed."""
    path = library_path()
    if path is None:
        raise MegalithError(
            "The native core is not built; run `pip install .` in the source folder, or `make build`."
        )
    core = ctypes.CDLL(str(path))
    core.mg_abi_version.restype = _int32
    version = core.mg_abi_version()
    if version != ABI_VERSION:
        raise MegalithError(
            f"{path} has version {version} of the native interface and this package version {ABI_VERSION}; "
            "run `pip install .` again."
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
        if result is _Code:
            # As a plain number: one that is not 0 is an error.
            function.restype, function.errcheck = _int32, _refuse
    return core


def _refuse(code: int, function: Any, arguments: tuple[Any, ...]) -> None:
    """Turns the code of a failed call into an error."""
    if code == 0:
        return
    doing = library().mg_last_error().decode(errors="replace")
    if code < 0:
        raise OSError(-code, f"{os.strerror(-code)} (the native core could not {doing})")
    if code == _CACHE_FULL:
        raise CacheFullError(doing)
    if code == _STORAGE_FAILED:
        raise StorageError(doing)
    if code == _OUT_OF_MEMORY:
        raise OutOfMemoryError(f"There is not enough memory to {doing}; free some, or use smaller batches.")
    raise NativeError(f"The native core could not {doing}.")


def library_path() -> Path | None:
    """Where the core is: where MEGALITH_CORE says, beside this file, or where an editable install has it."""
    import megalith.ops

    if os.environ.get("MEGALITH_CORE"):
        return Path(os.environ["MEGALITH_CORE"])

    for folder in megalith.ops.__path__:
        for path in sorted(Path(folder).glob("megalith_core.*")):
            if path.suffix in (".so", ".dylib", ".dll"):
                return path
    return None


def simd_level() -> str:
    """The widest vector instructions that this processor and the core share."""
    return SIMD_LEVELS[library().mg_simd_level()]


def simd_level_for(*features: str) -> str:
    """The level of a processor that has these of the CPU_FEATURES."""
    bits = sum(1 << CPU_FEATURES.index(feature) for feature in features)
    return SIMD_LEVELS[library().mg_simd_level_for(bits)]


@cache
def share_torch_threads() -> bool:
    """Makes native operators run on torch's threads; False where torch is too old to offer them (< 2.10)."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if not (folder / name).exists():
            continue
        torch_core = ctypes.CDLL(str(folder / name))
        try:
            parallel_for, num_threads = torch_core.torch_parallel_for, torch_core.torch_get_num_threads
        except AttributeError:
            return False
        address = ctypes.cast(parallel_for, _pointer), ctypes.cast(num_threads, _pointer)
        library().mg_use_torch_threads(*address)
        return True
    return False
