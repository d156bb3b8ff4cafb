"""A backend in a package of its own, which Megalith knows nothing of, conforms and runs models."""

import tomllib
from pathlib import Path

import pytest
import torch

from megalith.export.backends.choice import load_whole
from megalith.export.backends.conformance import conforms
from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.registry import GROUP, listed_backends

PACKAGE = Path(__file__).parents[3] / "backend_package"


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """The package as an installer leaves it: its modules on the path, its entry points beside them."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"megalith_numpy-{project['version']}.dist-info"
    info.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(header)
    points = [f"{name} = {value}" for name, value in project["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(points) + "\n")
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_it_is_listed_beside_ours():
    listed = listed_backends()
    assert listed["numpy"].problem == ""
    assert {"native", "torch", "onnxruntime", "openvino", "numpy"} <= set(listed)


def test_it_conforms():
    findings = conforms("numpy")
    assert {finding.part for finding in findings} == {"lookups", "dense", "whole"}
    assert "promised bits" in {each.check for each in findings if each.result == "passed"}
    assert not [str(finding) for finding in findings if finding.check == "load"]


def test_it_may_be_paired_with_ours():
    model = probe_model("int8", "u8s7")
    request = RequestMaker(model, "whole").request(9)
    wanted = load_whole(model, "torch").run(request)
    for choice in ("native+numpy", "numpy+native", "numpy"):
        part = load_whole(model, choice)
        for name, out in part.run(request).items():
            torch.testing.assert_close(out, wanted[name], rtol=0, atol=2e-2)
        part.close()
