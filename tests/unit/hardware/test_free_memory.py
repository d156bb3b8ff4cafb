"""What a process could still get: the machine's memory, within control groups of either version."""

import pytest

from megalith.hardware.free_memory import available_bytes

MIB = 1 << 20


@pytest.fixture
def system(tmp_path):
    """Writes files of /proc and /sys below a folder."""

    def write(**files):
        for name, text in {"proc/meminfo": meminfo(1000), **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available_bytes(tmp_path)

    return lambda files=None: write(**(files or {}))


def meminfo(available, swap=0):
    return f"MemTotal: {8000 * 1024} kB\nMemAvailable: {available * 1024} kB\nSwapFree: {swap * 1024} kB\n"


def test_without_limits_it_is_what_the_machine_has_left(system):
    assert system() == 1000 * MIB
    assert system({"proc/meminfo": meminfo(1000, swap=50)}) == 1050 * MIB


def test_a_system_that_does_not_say(tmp_path):
    assert available_bytes(tmp_path) is None


def test_the_tightest_of_nested_groups_counts(system):
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": str(700 * MIB),
        "sys/fs/cgroup/a/memory.current": str(300 * MIB),
        "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/b/memory.current": str(200 * MIB),
    }
    assert system(files) == 500 * MIB
    inner = {"sys/fs/cgroup/a/b/memory.max": str(250 * MIB)}
    assert system({**files, **inner}) == 50 * MIB


def test_groups_of_the_first_version(system):
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/of/the/host\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(600 * MIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(200 * MIB),
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {10 * MIB}\n",
    }
    assert system(files) == 410 * MIB
    assert system({**files, "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)}) == 1000 * MIB


def test_a_group_over_its_limit_has_nothing_left(system):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": str(100 * MIB),
        "sys/fs/cgroup/memory.current": str(200 * MIB),
    }
    assert system(files) == 0
