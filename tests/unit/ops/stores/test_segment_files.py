"""Segment files of row pools: what is damaged is named, and what was flushed outlives the process."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from megalith.core.errors import NativeError, StorageError
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, SegmentRecords, TieredRows
from row_pools import brought

ROWS, DIM, BLOCK = 4000, 16, 4096


def make_pool(folder, capacity=500, **settings):
    settings = {"segment_bytes": 64 << 10, "layout": 11, **settings}
    memory = [torch.zeros(capacity + 1, DIM), torch.zeros(capacity + 1)]
    return TieredRows(
        [PooledTable(ROWS, StartValues(1, "t", DIM, 0.1))], memory, DiskSettings(folder, **settings)
    )


def train(pool, ids, batch, value):
    slots = brought(pool, torch.tensor([[0, 0, len(ids)]]), ids, batch, trains=True).long()
    pool.parts[0][slots] = float(value)
    pool.parts[1][slots] = float(value)
    pool.release(batch)


def read_all(pool):
    for batch, ids in enumerate(torch.arange(ROWS).split(100), start=1):
        train(pool, ids, batch, 1)


def trained_files(folder, **settings):
    """Every row trained, with its id as its value, and the files that hold them."""
    pool = make_pool(folder, **settings)
    for batch, ids in enumerate(torch.arange(ROWS).split(100), start=1):
        slots = brought(pool, torch.tensor([[0, 0, len(ids)]]), ids, batch, trains=True).long()
        pool.parts[0][slots] = ids.float()[:, None].expand(-1, DIM)
        pool.release(batch)
    files = pool.flush()
    pool.close()
    return files


def opened(folder, files, **settings):
    pool = make_pool(folder, **settings)
    pool.open(files)
    return pool


def values_of(pool):
    return {
        row: float(weights[0])
        for _, ids, (weight, _) in pool.rows()
        for row, weights in zip(ids.tolist(), weight, strict=True)
    }


def flip(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x40
    path.write_bytes(content)


def test_files_hold_every_row(tmp_path):
    files = trained_files(tmp_path)
    assert len(files) > 4
    assert values_of(opened(tmp_path, files)) == {row: float(row) for row in range(ROWS)}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in files)


@pytest.mark.parametrize(
    ("byte", "said"),
    [
        (0, "no segment of rows"),
        (8, "has version"),
        (16, "header is not what was written"),
        (40, "header is not what was written"),
    ],
)
def test_a_flipped_byte_of_the_header_is_named(tmp_path, byte, said):
    files = trained_files(tmp_path)
    flip(tmp_path / files[2].name, byte)
    with pytest.raises(StorageError, match=f"{files[2].name} is damaged: .*{said}"):
        opened(tmp_path, files)


def test_a_flipped_key_is_named(tmp_path):
    files = trained_files(tmp_path)
    path = tmp_path / files[1].name
    flip(path, path.stat().st_size - BLOCK)
    with pytest.raises(StorageError, match=f"{path.name} is damaged: the keys of its rows"):
        opened(tmp_path, files)


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_a_flipped_row_is_named_when_it_is_read(tmp_path, engine):
    files = trained_files(tmp_path)
    path = tmp_path / files[0].name
    flip(path, BLOCK + 5)
    pool = opened(tmp_path, files, engine=engine)
    with pytest.raises(StorageError, match=f"{path.name} is damaged: a row is not what was written"):
        values_of(pool)
    # Rows are written in the order in which they left memory.
    with pytest.raises(StorageError, match=f"{path.name} is damaged: the row at byte 4096"):
        read_all(pool)
    # What is in memory may never have been read: it is neither given nor written any more.
    with pytest.raises(StorageError, match="go back to a checkpoint"):
        pool.flush()


@pytest.mark.parametrize("kept", [0, 100, BLOCK, 3 * BLOCK + 17])
def test_a_file_that_was_cut_off_is_named(tmp_path, kept):
    files = trained_files(tmp_path)
    os.truncate(tmp_path / files[3].name, kept)
    with pytest.raises(StorageError, match=f"{files[3].name} "):
        opened(tmp_path, files)


def test_a_file_that_is_cut_off_while_open_is_named(tmp_path):
    files = trained_files(tmp_path)
    pool = opened(tmp_path, files)
    os.truncate(tmp_path / files[0].name, BLOCK)
    with pytest.raises(StorageError, match=f"{files[0].name} could not be read at byte"):
        values_of(pool)


def test_a_missing_file_and_rows_of_other_tables_are_named(tmp_path):
    files = trained_files(tmp_path)
    with pytest.raises(StorageError, match=f"{files[0].name} is damaged: its rows are of other tables"):
        opened(tmp_path, files, layout=12)
    (tmp_path / files[0].name).unlink()
    with pytest.raises(StorageError, match=f"{files[0].name} could not be opened"):
        opened(tmp_path, files)


def test_live_records_that_do_not_fit_their_file_are_named(tmp_path):
    files = trained_files(tmp_path)
    short = [SegmentRecords(files[0].name, files[0].live[:-1]), *files[1:]]
    with pytest.raises(StorageError, match=f"{files[0].name} is damaged: it has other rows"):
        opened(tmp_path, short)
    with pytest.raises(StorageError, match=r"[0-9a-f]+\.rows and .*[0-9a-f]+\.rows hold the same row"):
        opened(tmp_path, [*files, files[0]])


def test_the_bound_on_disk_is_kept_and_named(tmp_path):
    full = r"may hold 131072 bytes of rows and is full; raise its bound \(memory\.disk\)"
    with pytest.raises(StorageError, match=full):
        trained_files(tmp_path, max_bytes=128 << 10)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 128 << 10


def linked_elsewhere(pool, folder):
    """What a checkpoint does: every file of the pool gets a second name."""
    folder.mkdir()
    for file in pool.flush():
        os.link(pool.disk.folder / file.name, folder / file.name)


def train_all(pool, rounds, first=1):
    for batch, ids in enumerate(list(torch.arange(ROWS).split(100)) * rounds, start=first):
        train(pool, ids, batch, batch)


def bytes_on_disk(*folders):
    files = {path.stat().st_ino: path.stat().st_size for folder in folders for path in folder.rglob("*.rows")}
    return sum(files.values())


def test_files_that_only_checkpoints_keep_count_against_the_bound(tmp_path):
    rows, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    rows.mkdir()
    # Files take up to 1.4 times the 288,000 bytes of the rows, and those being filled.
    bound = 1 << 20
    pool = make_pool(rows, max_bytes=bound)
    train_all(pool, 3)
    linked_elsewhere(pool, checkpoint)
    kept = r"may hold 1048576 bytes of rows and is full, \d+ of them older rows that checkpoints keep"

    def save_and_go_on():
        for number in range(3):
            train_all(pool, 3, first=1 + 120 * (number + 1))
            linked_elsewhere(pool, tmp_path / f"checkpoint-{number}")

    with pytest.raises(StorageError, match=kept + r"; raise .*memory\.disk.* \(train\.keep_checkpoints\)\.$"):
        save_and_go_on()
    pool.close()
    assert bytes_on_disk(tmp_path) <= bound


def test_a_checkpoint_that_is_deleted_no_longer_counts(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    pool = make_pool(rows, max_bytes=1 << 20)
    for number in range(8):
        train_all(pool, 3, first=1 + 120 * number)
        linked_elsewhere(pool, tmp_path / f"checkpoint-{number}")
        assert bytes_on_disk(tmp_path) <= 1 << 20
        shutil.rmtree(tmp_path / f"checkpoint-{number}")
    pool.close()


def test_files_that_another_process_left_to_checkpoints_count(tmp_path):
    rows, other = tmp_path / "rows", tmp_path / "other"
    rows.mkdir()
    other.mkdir()
    kept = [other / file.name for file in trained_files(other)]
    bound = 640 << 10
    without = make_pool(rows, max_bytes=bound)
    train_all(without, 3)
    without.close()
    for path in rows.iterdir():
        path.unlink()
    pool = make_pool(rows, max_bytes=bound)
    pool.keep(kept)
    with pytest.raises(StorageError, match=f"full, {bytes_on_disk(other)} of them older rows"):
        train_all(pool, 3)
    pool.close()


def test_space_is_given_back_when_rows_are_written_again(tmp_path):
    pool = make_pool(tmp_path)
    for batch, ids in enumerate(list(torch.arange(ROWS).split(100)) * 12, start=1):
        train(pool, ids, batch, batch)
    statistics = pool.statistics()
    row_bytes = DIM * 4 + 4
    held = sum(path.stat().st_size for path in tmp_path.iterdir())
    # Files may take 1.4 times the rows' bytes, beside four segments and what is being written.
    assert held <= 1.4 * 1.2 * ROWS * row_bytes + 7 * (64 << 10)
    assert statistics.written_back_rows > 10 * ROWS
    pool.flush()
    assert len(values_of(pool)) == ROWS


def test_a_limit_on_file_sizes_is_one_sentence(tmp_path):
    """As a full disk is: the system refuses a write in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * BLOCK, hard))
    try:
        with pytest.raises(StorageError, match=r"\.rows could not be written at byte \d+: File too large"):
            trained_files(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


CHILD = """
import json, sys, torch
from pathlib import Path
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows
folder = Path(sys.argv[1])
memory = [torch.zeros(501, 16), torch.zeros(501)]
tables = [PooledTable(4000, StartValues(1, "t", 16, 0.1))]
pool = TieredRows(tables, memory, DiskSettings(folder, segment_bytes=64 << 10, layout=11))
batch = 0
while True:
    for ids in torch.randperm(4000, generator=torch.Generator().manual_seed(batch)).split(100):
        batch += 1
        slots = pool.resolve(torch.tensor([[0, 0, 100]]), ids, batch, trains=True).long()
        pool.arrive(batch)
        memory[0][slots] = float(batch)
        pool.release(batch)
        if batch == 130:
            kept = folder / "kept"
            kept.mkdir()
            files = pool.flush()
            for file in files:
                (kept / file.name).hardlink_to(folder / file.name)
            values = {r: float(w[0]) for _, ids, (ws, _) in pool.rows() for r, w in zip(ids.tolist(), ws)}
            described = [[file.name, file.live.tolist()] for file in files]
            (folder / "manifest.json").write_text(json.dumps([described, values]))
        print(batch, flush=True)
"""


@pytest.mark.parametrize("after", [131, 150, 200, 333, 512])
def test_what_was_flushed_outlives_a_kill(tmp_path, after):
    """Links keep the files of a flush whatever the pool collects afterwards."""
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) >= after:
                break
        child.kill()
    files, values = json.loads((tmp_path / "manifest.json").read_text())
    pool = opened(tmp_path / "kept", [SegmentRecords(*file) for file in files])
    assert values_of(pool) == {int(row): value for row, value in values.items()}
    assert len(values) == ROWS


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match="could not be created"):
        trained_files(Path(tmp_path) / "absent")


def test_a_closed_pool_and_odd_arguments_are_refused(tmp_path):
    pool = make_pool(tmp_path)
    lookups, ids = torch.tensor([[0, 0, 4]]), torch.arange(4)
    for odd in (torch.arange(8)[::2], torch.arange(4.0), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="values are contiguous"):
            pool.resolve(lookups, odd, 1, trains=True)
    for odd in (torch.tensor([[1, 0, 4]]), torch.tensor([[0, 0, 5]]), torch.tensor([[0, -1, 4]])):
        with pytest.raises(ValueError, match="a table or values that there are not"):
            pool.expect(odd, ids, 1)
    with pytest.raises(ValueError, match="do not fit"):
        pool.load(0, ids, [torch.zeros(4, DIM), torch.zeros(3)])
    with pytest.raises(ValueError, match="below its number of rows"):
        pool.load(0, ids + ROWS, [torch.zeros(4, DIM), torch.zeros(4)])
    with pytest.raises(NativeError, match=f"id {ROWS} is no row of its table"):
        pool.resolve(lookups, torch.tensor([0, 1, 2, ROWS]), 1, trains=True)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.flush()
