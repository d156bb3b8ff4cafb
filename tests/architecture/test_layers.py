"""The shape of the package: layers, the table of operators, the size of modules."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

from megalith.ops import native
from megalith.ops.table import OPERATORS, PLUMBING

ROOT = Path(__file__).parents[2]


def test_imports_only_go_down():
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_help_imports_neither_torch_nor_arrow():
    code = (
        "import sys; from megalith.cli.app import app; import megalith; "
        "print([m for m in ('torch', 'pyarrow', 'numpy', 'polars', 'plotly') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_exported_function_is_an_operator_or_plumbing():
    exported = set()
    for path in (ROOT / "csrc").rglob("*.cpp"):
        exported |= set(re.findall(r"^MG_EXPORT [\w ]+\*? ?\*?(mg_\w+)\(", path.read_text(), re.MULTILINE))
    listed = {name for operator in OPERATORS for name in operator.native} | set(PLUMBING)
    assert exported == listed == set(native._SIGNATURES)


def test_every_operator_has_a_facade_a_twin_and_a_property_test():
    for operator in OPERATORS:
        for place in (operator.facade, operator.twin):
            module, name = place.split(":")
            assert callable(getattr(importlib.import_module(module), name)), place
        tests = ROOT / "tests" / "parity" / f"test_{operator.name}.py"
        assert "@given" in tests.read_text(), tests


def test_the_architecture_page_lists_every_operator():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for operator in OPERATORS:
        for home in (operator.facade, operator.twin):
            assert home.split(":")[1] in page, f"docs/architecture.md does not name {home}"
    for source in re.findall(r"`(csrc/[\w/]+\.(?:cpp|h))`", page):
        assert (ROOT / source).exists(), source
