"""The public names: all there, documented, quick to import, and typed for users of mypy and pyright."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import megalith

ROOT = Path(__file__).parents[2]


def python(code, folder):
    """Runs code in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_all_there_and_documented():
    assert sorted(megalith.__all__) == sorted(megalith._HOMES)
    for name in megalith.__all__:
        assert inspect.getdoc(getattr(megalith, name)), name


def test_a_fresh_import_gives_every_name_as_an_attribute_and_by_star(tmp_path):
    names = ", ".join(f"mg.{name}" for name in megalith.__all__)
    code = f"""
import megalith as mg
attributes = [{names}]
from megalith import *
assert [globals()[name] for name in mg.__all__] == attributes
assert dir(mg) == sorted([*mg.__all__, "__version__"])
print(len(attributes))
"""
    assert python(code, tmp_path) == str(len(megalith.__all__))


def test_the_import_is_quick_until_a_name_is_used(tmp_path):
    code = "import sys, megalith; dir(megalith); print('torch' in sys.modules, 'pydantic' in sys.modules)"
    assert python(code, tmp_path) == "False False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'megalith' has no attribute 'Tariner'"):
        _ = megalith.Tariner


USER_CODE = """
import megalith as mg

tables = [mg.TableSpec(name="t0", rows=100, dim=8, features=("f0",), pooling="sum", dtype="float32")]
mg.EmbeddingCollection(tables, optimizer=mg.RowWiseAdaGrad(lr=0.01), seed=0)
trainer = mg.Trainer(mg.load_recipe("demo", ["data.path=data"]), "runs/first")
reveal_type(mg.EmbeddingCollection)
reveal_type(trainer.train())
reveal_type(mg.Loader)
reveal_type(mg.ShardedEmbeddingCollection)
trainer.trian()
mg.TableSpec(name=3, rows=100, dim=8, features=("f0",))
mg.Tariner
"""


# The libraries below us are large, and of no account here.
SETTINGS = """
[mypy]
follow_imports = silent
ignore_missing_imports = True
[mypy-torch.*,numpy.*,pyarrow.*,rich.*,tensorboard.*,typer.*,plotly.*,safetensors.*,highspy.*,yaml.*]
follow_imports = skip
"""


def test_a_type_checker_knows_the_public_names(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "user.py").write_text(USER_CODE)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mypy", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = done.stdout
    assert 'Revealed type is "def (tables:' in said, said + done.stderr
    assert "-> megalith.embeddings.collection.EmbeddingCollection" in said
    assert "-> megalith.sharding.runtime.collection.ShardedEmbeddingCollection" in said
    assert "-> megalith.data.loader.loader.Loader" in said
    assert re.search(r'Revealed type is "(builtins\.)?dict\[(builtins\.)?str, Any\]"', said), said
    assert 'Argument "name" to "TableSpec" has incompatible type "int"; expected "str"' in said
    assert '"Trainer" has no attribute "trian"' in said
    assert 'Module has no attribute "Tariner"' in said
    assert "Found 3 errors in 1 file" in said


def test_the_package_says_that_it_is_typed():
    assert (Path(megalith.__file__).parent / "py.typed").is_file()
