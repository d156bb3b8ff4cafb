"""The C interface of the native core: its signatures are written down once more in Python, and versioned."""

import ctypes
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from megalith.ops import native

ROOT = Path(__file__).parents[2]


class Declaration(NamedTuple):
    """An exported function as csrc/ has it."""

    result: str
    arguments: tuple[str, ...]
    noexcept: bool
    body: str
    """At least to the end of its first block."""


def declarations():
    found = {}
    head = r"^MG_EXPORT ([\w \*]+?)(mg_\w+)\(([^)]*)\)( noexcept)? \{(.*?)\}$"
    pattern = re.compile(head, re.MULTILINE | re.DOTALL)
    for path in sorted((ROOT / "csrc").rglob("*.cpp")):
        for result, name, arguments, noexcept, body in pattern.findall(path.read_text()):
            # Names of arguments do not matter to a caller.
            named = [one.strip() for one in arguments.split(",") if one.strip()]
            types = [re.sub(r"\w+$", "", one).replace(" ", "") for one in named]
            found[name] = Declaration(result.strip().replace(" ", ""), tuple(types), bool(noexcept), body)
    return found


def digest(version):
    """Of all signatures, on both sides, and the version that has them."""
    written = [f"{name} {one.result} {one.arguments}" for name, one in sorted(declarations().items())]
    bound = [
        f"{name} {getattr(result, '__name__', result)} {[one.__name__ for one in arguments]}"
        for name, (result, arguments) in sorted(native._SIGNATURES.items())
    ]
    return hashlib.sha256("\n".join([str(version), *written, *bound]).encode()).hexdigest()[:16]


def test_signatures_change_only_with_the_version():
    following = native.ABI_VERSION + 1
    assert digest(native.ABI_VERSION) == native.ABI_DIGEST, (
        f"A signature of the native core has changed: raise ABI_VERSION in ops/native.py and kAbiVersion in "
        f"csrc/abi.h to {following}, and set ABI_DIGEST to '{digest(following)}'."
    )


def test_both_sides_name_the_same_version():
    header = (ROOT / "csrc" / "abi.h").read_text()
    assert f"kAbiVersion = {native.ABI_VERSION};" in header


def test_python_repeats_every_signature():
    found = declarations()
    assert set(found) == set(native._SIGNATURES)
    for name, (result, arguments) in native._SIGNATURES.items():
        # Also a pointer may be a number of bytes to ctypes, or text.
        given = [ctypes.c_void_p if one is ctypes.c_char_p else one for one in arguments]
        assert given == [_bound(one) for one in found[name].arguments], name
        if result is native._Code:
            assert found[name].result == "int32_t", name
        elif result is not None:
            assert found[name].result == "constchar*" or _bound(found[name].result) is result, name
        else:
            assert found[name].result == "void", name


def _bound(type_name):
    if type_name.endswith("*"):
        return ctypes.c_void_p
    return {
        "int32_t": ctypes.c_int32,
        "uint32_t": ctypes.c_uint32,
        "int64_t": ctypes.c_int64,
        "uint64_t": ctypes.c_uint64,
        "float": ctypes.c_float,
    }[type_name]


def test_no_exception_leaves_an_exported_function():
    """It does its work inside `guarded` and returns a code that Python checks, or it cannot fail."""
    for name, one in declarations().items():
        checked = native._SIGNATURES[name][0] is native._Code
        assert checked != one.noexcept, name
        assert checked == bool(re.search(r"return (megalith::)?guarded\(", one.body)), name


def test_the_library_exports_what_python_binds_and_nothing_else():
    if shutil.which("nm") is None:
        pytest.skip("nm, which comes with the compiler, is not here")
    command = ["nm", "--dynamic", "--defined-only", str(native.library_path())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {line.split()[-1] for line in listed} == set(native._SIGNATURES)


def test_a_failed_call_is_an_error_whoever_makes_it():
    """Codes are checked where functions are bound; no caller can forget to."""
    core = native.library()
    for name, (result, _) in native._SIGNATURES.items():
        assert (getattr(core, name).errcheck is not None) == (result is native._Code), name
