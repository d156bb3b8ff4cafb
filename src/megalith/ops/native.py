"""Loads the native core: one shared library behind a C interface, with no torch and no Python symbol in it.

ctypes releases the interpreter lock around each call. `share_torch_threads` hands torch's own parallel_for
to the core, so that native operators and torch use one thread pool.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from megalith.core.errors import MegalithError

ABI_VERSION = 1
SIMD_LEVELS = ("portable", "avx2", "avx512")

_pointer, _int32, _int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_float, _text = ctypes.c_float, ctypes.c_char_p

# Every exported function: (result, arguments). The one place where signatures are repeated from csrc/.
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "mg_abi_version": (_int32, ()),
    "mg_simd_level": (_int32, ()),
    "mg_use_torch_threads": (None, (_pointer, _pointer)),
    "mg_set_num_threads": (None, (_int32,)),
    "mg_num_threads": (_int32, ()),
    # Text: rows to columns, keys, counts and ids (ops/text.py).
    "mg_parse_delimited": (
        _int64,
        (_pointer, _int64, _int32, _pointer, _pointer, _int32, _float, _int64, *(_pointer,) * 5),
    ),
    "mg_parse_entries": (_int64, (_pointer, _int64, _int32, _int64, *(_pointer,) * 6)),
    "mg_token_keys": (None, (_pointer, _pointer, _int64, _pointer)),
    "mg_count_create": (_pointer, (_int64, _int64, _text)),
    "mg_count_add": (_int64, (_pointer, _int64, _pointer, _pointer, _int64)),
    "mg_count_finish": (_int64, (_pointer, _int64, _int64, _int64, _text)),
    "mg_count_num_spills": (_int64, (_pointer,)),
    "mg_count_destroy": (None, (_pointer,)),
    "mg_lookup_create": (_pointer, (_int64, _text, _pointer)),
    "mg_lookup_bytes": (_int64, (_int64,)),
    "mg_lookup_insert": (None, (_pointer, _pointer, _int64, _int64)),
    "mg_lookup_map": (None, (_pointer, _pointer, _int64, _pointer)),
    "mg_lookup_destroy": (None, (_pointer,)),
    "mg_hash_keys": (None, (_pointer, _int64, _int64, _pointer)),
    # Embeddings (ops/embedding.py, ops/coupled.py).
    "mg_embedding_forward": (
        None,
        (
            _pointer,
            _int64,
            *(_pointer,) * 2,
            _int32,
            *(_pointer,) * 2,
            _int64,
            _pointer,
            _int64,
            _int64,
            _pointer,
            _int32,
        ),
    ),
    "mg_embedding_backward": (
        None,
        (
            *(_pointer, _int64, _int64, *(_pointer,) * 4, _int32, *(_pointer,) * 2, _int64, _pointer, _int64),
            *(_pointer, _pointer, ctypes.c_uint64, _int32),
        ),
    ),
    "mg_coupled_create": (_pointer, (_pointer, _int64, _int64, *(_pointer,) * 5, _int64)),
    "mg_coupled_find": (
        None,
        (*(_pointer,) * 2, _int32, *(_pointer,) * 2, _int64, _pointer, _int64, _pointer, _int32, _pointer),
    ),
    "mg_coupled_add_up": (None, (_pointer,) * 3),
    "mg_coupled_finish": (None, (_pointer, _pointer, ctypes.c_uint64)),
    "mg_coupled_destroy": (None, (_pointer,)),
    "mg_sample_weight_gradient": (
        None,
        (_pointer, _int64, *(_pointer,) * 2, _int32, _pointer, _int64, _pointer, _int64, _pointer, _int32),
    ),
    # The dot interaction (ops/interaction.py).
    "mg_dot_interaction": (None, (_pointer, _pointer, _int64, _int64, _int64, _pointer, _int32)),
    "mg_dot_interaction_backward": (
        None,
        (_pointer, _pointer, _pointer, _int64, _int64, _int64, _pointer, _pointer, _int32),
    ),
    "mg_copy_columns": (None, (*(_pointer,) * 3, *(_int64,) * 3, _pointer, _int64)),
    # Ids of cut rows (ops/sharing.py).
    "mg_share_rows": (
        None,
        (
            _pointer,
            _int32,
            *(_pointer,) * 2,
            _int64,
            _pointer,
            _int64,
            *(_pointer,) * 2,
            _int64,
            *(_pointer,) * 4,
        ),
    ),
    "mg_advise_huge_pages": (None, (_pointer, _int64)),
    "mg_lookup_fault": (_int64, (_pointer, _int32, _int64, _pointer, _int64, _pointer, _int64)),
    # The machine's own speed (bench/roofline.py).
    "mg_random_row_read": (ctypes.c_float, (_pointer, _int64, _pointer, _int64, _int64, _int32, _int32)),
    "mg_random_row_update": (None, (_pointer, _int64, _pointer, _int64, _int64, _int32, _int32)),
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
    found = core.mg_abi_version()
    if found != ABI_VERSION:
        raise MegalithError(
            f"{path} speaks version {found} of the native interface and this package version {ABI_VERSION}; "
            "run `pip install .` again."
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


def library_path() -> Path | None:
    """Where the core lies: where MEGALITH_CORE says, beside this file, or where an editable install is."""
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
