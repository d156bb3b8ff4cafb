"""Loading the native core."""

import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from megalith.core.errors import NativeError
from megalith.ops import native
from megalith.ops.text.keys import KeyCounter, KeyLookup, hash_keys


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


AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
VNNI = (*AVX512, "avx512vnni")


@pytest.mark.parametrize("level", [AVX2, AVX512, VNNI])
def test_a_level_needs_every_instruction_set_that_its_build_uses(level):
    """Hypervisors show processors with any of them left out."""
    full = native.simd_level_for(*level)
    assert full == {AVX2: "avx2", AVX512: "avx512", VNNI: "avx512vnni"}[level]
    for missing in level:
        found = native.simd_level_for(*(one for one in level if one != missing))
        narrower = "portable" if missing in AVX2 else "avx2" if missing in AVX512 else "avx512"
        assert found == narrower, missing


def test_wide_vectors_without_half_precision_conversion_are_not_used():
    assert native.simd_level_for("avx2", "fma") == "portable"
    assert native.simd_level_for(*(one for one in AVX512 if one != "f16c")) == "portable"


def test_the_builds_are_given_no_other_instruction_set():
    """What CMake lets the compiler use is what the choice at run time asks for."""
    text = (Path(__file__).parents[3] / "csrc" / "CMakeLists.txt").read_text()
    used = set(re.findall(r"-m(avx\w*|fma|f16c)\b", text))
    assert used == set(native.CPU_FEATURES)


def test_the_machine_at_hand_is_asked_for_all_of_them():
    flags = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists():
        pytest.skip("the flags of this processor are not in /proc/cpuinfo")
    line = flags.read_text().split("flags", 1)[1].split("\n", 1)[0]
    shown = set(line.replace("avx512_", "avx512").split())
    assert native.simd_level() == native.simd_level_for(*(one for one in native.CPU_FEATURES if one in shown))


def test_more_keys_than_were_announced_are_refused():
    lookup = KeyLookup(1)
    with pytest.raises(NativeError, match="more keys than were announced"):
        lookup.insert(np.arange(1, 10_000, dtype=np.uint64), 2)


@pytest.mark.parametrize("buckets", [0, -1, 2**31])
def test_buckets_that_ids_cannot_number_are_refused(buckets):
    with pytest.raises(NativeError, match="buckets"):
        hash_keys(np.arange(9, dtype=np.uint64), buckets)


def test_a_feature_that_is_not_counted_is_refused(tmp_path):
    with KeyCounter(2, 1 << 20, tmp_path) as counter, pytest.raises(NativeError, match="count keys"):
        counter.add(1 << 30, np.arange(9, dtype=np.uint64))
