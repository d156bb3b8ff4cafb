from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from megalith.hardware.machine import memory_bytes, this_machine, usable_cores


def test_this_machine_is_described_in_plain_values(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cpu
    assert machine.cores == usable_cores() >= 1
    assert machine.memory_bytes == memory_bytes()
    assert machine.disk_free_bytes > 0
    assert json.loads(json.dumps(machine.to_dict())) == machine.to_dict()


def test_a_folder_that_does_not_exist_yet_counts_as_its_parent(tmp_path: Path) -> None:
    assert this_machine(tmp_path / "not" / "yet").disk == this_machine(tmp_path).disk


def test_describing_the_machine_imports_nothing_heavy() -> None:
    script = (
        "import sys, megalith.hardware.machine as m; m.this_machine(); "
        "print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
