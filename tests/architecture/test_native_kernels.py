"""Kernels that are built for several processors share no code with the rest of the native core.

The linker keeps one copy of a template or an inline function that several object files define, whichever
flags it was built with. A copy of `std::vector::resize` with AVX-512 instructions under code that runs on any
processor is a crash on older ones. So whatever kernels define is in the namespace of their build.
"""

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
SOURCES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])
BUILDS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
}
BUILDS["vnni"] = [*BUILDS["avx512"], "-mavx512vnni"]
"""Of products of bytes alone."""
PLAIN_HEADERS = {"cstddef", "cstdint", "cstring", "type_traits", "immintrin.h"}
"""Of the standard library, those without containers and without functions that kernels could instantiate."""


def included(path):
    """The file and all headers of csrc/ that it includes, however indirectly."""
    found, left = set(), [path]
    while left:
        current = left.pop()
        if current not in found:
            found.add(current)
            left += [
                CSRC / name for name in re.findall(r'^#include "(.+)"', current.read_text(), re.MULTILINE)
            ]
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_kernels_include_nothing_that_they_could_instantiate(build):
    headers = included(CSRC / "simd" / f"kernels_{build}.cpp")
    assert len(headers) > 10
    for path in headers:
        assert set(re.findall(r"^#include <(.+)>", path.read_text(), re.MULTILINE)) <= PLAIN_HEADERS, path


@pytest.mark.parametrize("build", BUILDS)
def test_kernels_define_nothing_outside_of_their_build(build, tmp_path):
    """Compiled without optimization, where every function that is called is defined."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("a compiler and nm are not here")
    if BUILDS[build] and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not built for this processor")
    made = tmp_path / "kernels.o"
    source = CSRC / "simd" / f"kernels_{build}.cpp"
    command = [compiler, "-std=c++17", "-O0", "-w", f"-I{CSRC}", *BUILDS[build], "-c", source, "-o", made]
    subprocess.run(list(map(str, command)), check=True)
    listed = subprocess.run(["nm", "-C", "--defined-only", made], check=True, capture_output=True, text=True)
    # Local symbols (in small letters) are nobody else's; a vague `u`, `v` or `w` is.
    shared = [line.split(maxsplit=2)[1:] for line in listed.stdout.splitlines()]
    names = {name for kind, name in shared if kind.isupper() or kind in "uvw"}
    outside = {name for name in names if f"megalith::{build}::" not in name}
    assert outside == {f"megalith::{build}_kernels()"}
    assert len(names) > (10 if build == "vnni" else 100)


def test_compile_options_are_those_of_the_build():
    """The flags above, and the features that choose a build at run time."""
    cmake, dispatch = (CSRC / "CMakeLists.txt").read_text(), (CSRC / "simd" / "dispatch.cpp").read_text()
    for flag in BUILDS["vnni"]:
        assert flag in cmake
        assert f'"{flag.removeprefix("-m")}"' in dispatch or flag == "-mf16c"


def test_types_have_names_of_their_own():
    """Two files of one library that define a type of one name in one namespace differ without a word."""
    homes = defaultdict(set)
    pattern = re.compile(
        r"^ *(?:struct|enum class|class|enum)(?: alignas\(\d+\))? (\w+)[^;]*\{", re.MULTILINE
    )
    for path in SOURCES:
        for name in pattern.findall(path.read_text()):
            homes[name].add(str(path.relative_to(CSRC)))
    assert len(homes) > 30
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
