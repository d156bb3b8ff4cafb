"""Loading the native core."""

import torch

from megalith.ops import native


def test_the_core_is_built_and_of_this_version():
    assert native.library().mg_abi_version() == native.ABI_VERSION


def test_the_core_needs_neither_torch_nor_python():
    """One binary for every torch: nothing of either may stand among the symbols it wants."""
    content = native.library_path().read_bytes()
    assert b"libtorch" not in content
    assert b"libc10" not in content
    assert b"libpython" not in content


def test_native_operators_run_on_torchs_threads():
    assert native.share_torch_threads()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert native.library().mg_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_simd_level_has_a_name():
    assert native.simd_level() in native.SIMD_LEVELS
