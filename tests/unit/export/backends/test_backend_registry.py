"""Backends are found by entry point, and a broken one does not break the others."""

import sys

import pytest

from megalith.core.errors import ConfigError
from megalith.export.backends.registry import find_backend, listed_backends, usable_backends

OURS = {"native", "onnxruntime", "openvino", "torch"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package of a module and its entry points, as an installed one lies on the path."""

    def make(name, module, points):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(module)
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[megalith.backends]\n" + "\n".join(points) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return make


def test_ours_are_listed():
    assert set(listed_backends()) >= OURS
    assert {backend.name for backend in usable_backends()} >= {"torch"}


def test_a_plug_in_that_does_not_import_gets_one_sentence(package):
    package("broken_one", "import no_such_module\n", ["broken = broken_one:Backend"])
    listed = listed_backends()
    problem = listed["broken"].problem
    assert "'broken' of package 'broken_one' does not load (ModuleNotFoundError" in problem
    assert "\n" not in problem
    assert listed["torch"].backend is not None
    with pytest.raises(ConfigError, match="fix or uninstall it"):
        find_backend("broken")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("Thing = 3\n", "is not a subclass"),
        ("from megalith.export.backends.base import Backend as Thing\n", "is not a subclass"),
        ("raise SystemError('no\\nway')\n", "SystemError: no\\\\nway"),
        (
            "from megalith.export.backends.kernels.twins import TorchBackend\n"
            "class Thing(TorchBackend):\n    name = 'other'\n",
            "calls itself 'other'",
        ),
        (
            "from megalith.export.backends.kernels.twins import TorchBackend\n"
            "class Thing(TorchBackend):\n    name = 'odd'\n    def unavailable(self):\n        1 / 0\n",
            "ZeroDivisionError",
        ),
    ],
)
def test_what_is_no_backend_gets_one_sentence(package, module, expected):
    package("odd_one", module, ["odd = odd_one:Thing"])
    listed = listed_backends()["odd"]
    assert listed.backend is None
    assert expected.replace("\\\\", "\\") in listed.problem
    assert "\n" not in listed.problem


def test_two_packages_of_one_name_are_refused_together(package):
    package(
        "rival",
        "from megalith.export.backends.kernels.native import NativeBackend as B\n",
        ["torch = rival:B"],
    )
    assert "Several packages name a backend 'torch'" in listed_backends()["torch"].problem


def test_an_unknown_backend_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'openvino'"):
        find_backend("openvno")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_an_absent_package_gets_a_sentence_that_says_how_to_get_it(name, monkeypatch):
    from importlib import util

    real = util.find_spec
    module = sys.modules[type(listed_backends()[name].backend).__module__]
    monkeypatch.setattr(module, "find_spec", lambda package: None if package == name else real(package))
    listed = listed_backends()[name]
    assert (
        f"needs the package '{name}', which is not installed; pip install 'megalith[{name}]'."
        in listed.problem
    )
    with pytest.raises(ConfigError, match="is not installed"):
        find_backend(name)
