"""What keeps the package readable: small modules and folders, a name for each class, docstrings."""

import ast
import statistics
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "megalith"
MODULES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".h"))


def lines_of(path):
    return path.read_text(encoding="utf-8").count("\n")


def definitions(node, prefix=""):
    """Public classes, methods and functions by dotted name; what is inside a function is not public."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield prefix + child.name, child
                if isinstance(child, ast.ClassDef):
                    yield from definitions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from definitions(child, prefix)


def test_a_file_has_at_most_400_lines():
    long = {
        str(path.relative_to(ROOT)): lines_of(path) for path in [*MODULES, *NATIVE] if lines_of(path) > 400
    }
    assert not long


def test_half_of_the_modules_have_at_most_120_lines():
    assert statistics.median(map(lines_of, MODULES)) <= 120


def test_a_folder_has_at_most_twelve_modules():
    modules = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert not {str(folder.relative_to(PACKAGE)): count for folder, count in modules.items() if count > 12}


def test_a_public_class_has_a_name_of_its_own():
    homes = defaultdict(list)
    for path in MODULES:
        for name, node in definitions(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[name.split(".")[-1]].append(str(path.relative_to(PACKAGE)))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_what_is_public_has_a_docstring():
    missing = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [("module", tree), *definitions(tree)] if tree.body else []
        missing += [
            f"{path.relative_to(PACKAGE)}: {name}" for name, node in named if not ast.get_docstring(node)
        ]
    assert not missing
