"""Streams of versions: taken in order and once, whatever becomes of their files on the way."""

import random
import shutil
from pathlib import Path

import pyarrow.fs as arrow_fs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, ServeError, StorageError
from megalith.export.delta.folder import FrozenDelta
from megalith.export.delta.source import DeltaModel
from megalith.export.folder import FrozenModel
from megalith.export.stream.changes import DeltaContent, RowChanges, newest
from megalith.export.stream.followed import FollowedModel, write_local_delta, write_whole
from megalith.export.stream.reader import Position, StreamReader
from megalith.export.stream.records import delta_file, version_file
from megalith.export.stream.storage import StreamStorage
from megalith.export.stream.writer import StreamWriter
from streamed_models import STREAM, SmallPublisher, same_content, taken


@pytest.fixture
def storage(tmp_path: Path) -> StreamStorage:
    return StreamStorage.of(str(tmp_path / "live"))


@pytest.fixture
def publisher(storage: StreamStorage, tmp_path: Path) -> SmallPublisher:
    found = SmallPublisher(storage, tmp_path / "work")
    found.snapshot()
    return found


def test_a_reader_has_every_version_as_its_writer_had_it(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    reader = StreamReader(storage)
    model, position, problem = taken(reader, tmp_path)
    for _ in range(8):
        record = publisher.delta()
        model, position, problem = taken(reader, tmp_path, position, model)
        assert not problem
        assert position == Position.of(record)
        assert model is not None
        assert same_content(model, publisher.versions[record.number])
    fresh, at, _ = taken(StreamReader(storage), tmp_path / "fresh")
    assert at == position
    assert fresh is not None
    assert same_content(fresh, publisher.model)


def test_an_object_store_has_the_same_stream(tmp_path: Path) -> None:
    inner = tmp_path / "bucket"
    inner.mkdir()
    system = arrow_fs.SubTreeFileSystem(str(inner), arrow_fs.LocalFileSystem())
    storage = StreamStorage(system, "live", "bucket://live")
    publisher = SmallPublisher(storage, tmp_path / "work")
    publisher.snapshot()
    for _ in range(3):
        publisher.delta()
    assert publisher.writer.compact(tmp_path / "work")
    publisher.delta()
    publisher.writer.prune()
    model, position, problem = taken(StreamReader(storage), tmp_path)
    assert not problem
    assert position is not None
    assert position.number == 5
    assert model is not None
    assert same_content(model, publisher.model)


def test_lost_repeated_and_late_deltas_leave_the_reader_with_the_writer_s_bits(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    """Of 60 versions a courier drops 10% for ever, brings 10% twice and 10% late, in no order."""
    draw = random.Random(7)
    arrived = tmp_path / "arrived"
    courier = {"lost": set(draw.sample(range(2, 61), 6)), "late": set(draw.sample(range(2, 61), 6))}
    twice = set(draw.sample(range(2, 61), 6))

    def bring(name: str) -> None:
        source = tmp_path / "live" / name
        if source.exists():
            target = arrived / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, target)

    reader = StreamReader(StreamStorage.of(str(arrived)))
    (arrived / "versions").mkdir(parents=True)
    position, model = None, None
    waiting: list[int] = [1]
    seen: list[int] = []
    gaps = 0
    for number in range(1, 61):
        if number > 1:
            publisher.delta()
            waiting.append(number)
        if number % 12 == 0:
            publisher.writer.compact(tmp_path / "work")
            bring(f"snapshots/{number:010d}")
            # A snapshot comes with the record of its version.
            courier["lost"].discard(number)
            courier["late"].discard(number)
        if number == 1:
            bring("snapshots/0000000001")
        draw.shuffle(waiting)
        for each in list(waiting):
            if each in courier["lost"] or (each in courier["late"] and number < each + 3):
                continue
            names = [delta_file(each), version_file(each)]
            for name in names * (2 if each in twice else 1):
                bring(name)
            if each in twice and draw.random() < 0.5:
                copy = arrived / version_file(each)
                shutil.copyfile(copy, copy.with_name(f"{copy.stem} (copy).json"))
            waiting.remove(each)
        before = 0 if position is None else position.number
        model, position, problem = taken(reader, tmp_path / f"taken-{number}", position, model)
        gaps += bool(problem)
        assert position is not None
        assert position.number >= before
        seen.append(position.number)
        assert model is not None
        assert same_content(model, publisher.versions[position.number])
    assert gaps
    assert seen == sorted(seen)
    assert position is not None
    assert position.number == 60
    assert model is not None
    assert same_content(model, publisher.model)


def test_who_was_away_while_deltas_were_pruned_begins_at_a_snapshot(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    reader = StreamReader(storage)
    model, position, _ = taken(reader, tmp_path)
    for number in range(2, 12):
        publisher.delta()
        if number % 3 == 0:
            assert publisher.writer.compact(tmp_path / "work")
            publisher.writer.prune()
    assert reader.numbers() == [6, 7, 8, 9, 10, 11]
    assert reader.snapshots() == [6, 9]
    assert sorted(storage.list("deltas")) == [f"{number:010d}.safetensors" for number in range(6, 12)]
    found = reader.catch_up(position)
    assert found.snapshot is not None
    assert found.snapshot.number == 9
    model, position, problem = taken(reader, tmp_path, position, model)
    assert not problem
    assert model is not None
    assert same_content(model, publisher.model)


@pytest.mark.parametrize("name", [delta_file(3), version_file(3)])
def test_a_damaged_file_is_refused_by_name_until_a_snapshot_leads_past_it(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path, name: str
) -> None:
    for _ in range(3):
        publisher.delta()
    path = tmp_path / "live" / name
    whole = path.read_bytes()
    content = bytearray(whole)
    content[-5] ^= 1
    path.write_bytes(content)
    reader = StreamReader(storage)
    refused = {}
    found = reader.catch_up(None)
    if name.startswith("deltas"):
        with pytest.raises(ServeError, match=f"{path} is damaged"):
            reader.fetch_delta(found.deltas[1], tmp_path / "fetched")
        refused = {name: f"{path} is damaged."}
        found = reader.catch_up(None, refused)
    assert [record.number for record in found.deltas] == [2]
    assert f"{path} is damaged" in found.problem
    # Compaction of the stream needs that file too, and says so.
    with pytest.raises(ServeError, match=f"{path} is damaged"):
        StreamWriter(storage, STREAM, "m").compact(tmp_path / "work")
    publisher.snapshot()
    found = reader.catch_up(Position.of(reader.record(2)), refused)
    assert found.snapshot is not None
    assert found.snapshot.number == 5
    assert not found.problem


def test_a_damaged_snapshot_gives_way_to_the_one_before(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    publisher.delta()
    publisher.writer.compact(tmp_path / "work")
    path = tmp_path / "live" / "snapshots" / "0000000002" / "tables-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    reader = StreamReader(storage)
    found = reader.catch_up(None)
    assert found.snapshot is not None
    with pytest.raises(ServeError, match=f"{path} is damaged"):
        reader.fetch_snapshot(found.snapshot, tmp_path / "fetched")
    found = reader.catch_up(None, {"snapshots/0000000002": "damaged"})
    assert found.snapshot is not None
    assert found.snapshot.number == 1
    assert [record.number for record in found.deltas] == [2]


def test_a_writer_that_was_killed_before_the_record_leaves_no_version(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    publisher.delta()
    (tmp_path / "live" / delta_file(3)).write_bytes(b"half of a del")
    (tmp_path / "live" / "versions" / ".0000000003.json.partial-1").write_bytes(b"{")
    (tmp_path / "live" / "snapshots" / "0000000003").mkdir()
    (tmp_path / "live" / "snapshots" / "0000000003" / "manifest.json").write_text("{}")
    again = StreamWriter(storage, STREAM, publisher.model.manifest.name)
    assert again.next_number == 3
    publisher.writer = again
    assert publisher.delta().number == 3
    model, position, problem = taken(StreamReader(storage), tmp_path)
    assert not problem
    assert position is not None
    assert position.number == 3
    assert model is not None
    assert same_content(model, publisher.model)
    assert not list((tmp_path / "live" / "versions").glob(".*"))


def test_a_stream_that_was_cut_and_written_again_is_not_mixed_with_the_one_before(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    publisher.delta()
    publisher.delta()
    reader = StreamReader(storage)
    _, position, _ = taken(reader, tmp_path)
    (tmp_path / "live" / version_file(3)).unlink()
    assert "version 2 as its newest, and 3 was taken" in reader.catch_up(position).problem
    publisher.writer = StreamWriter(storage, STREAM, publisher.model.manifest.name)
    publisher.delta()
    publisher.delta()
    found = StreamReader(storage).catch_up(position)
    assert not found.deltas
    assert "does not follow version 3" in found.problem
    publisher.snapshot()
    found = StreamReader(storage).catch_up(position)
    assert found.snapshot is not None
    assert found.snapshot.number == 5


def test_the_stream_of_another_run_is_neither_written_nor_taken(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="versions of another run"):
        StreamWriter(storage, "6" * 32, "probe")
    _, position, _ = taken(StreamReader(storage), tmp_path)
    shutil.rmtree(tmp_path / "live")
    other = SmallPublisher(storage, tmp_path / "work", stream="6" * 32)
    other.snapshot()
    other.delta()
    found = StreamReader(storage).catch_up(position)
    assert found.snapshot is None
    assert not found.deltas
    assert "another stream" in found.problem


def test_a_place_that_is_none_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere://x is no place"):
        StreamStorage.of("nowhere://x/y")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match="file"):
        StreamStorage.of(str(blocked)).write("versions/1.json", b"")
    assert StreamReader(StreamStorage.of(str(tmp_path / "none"))).catch_up(None).newest == 0


def test_what_a_server_loads_over_its_version_is_the_next_version(
    storage: StreamStorage, publisher: SmallPublisher, tmp_path: Path
) -> None:
    first, _, _ = taken(StreamReader(storage), tmp_path)
    assert first is not None
    followed, served = first, DeltaModel(FrozenModel(first.folder), FrozenDelta(_empty(first, tmp_path)))
    for _ in range(4):
        content = publisher.change()
        record = publisher.writer.add_delta(content, 5, 5.0, tmp_path)
        target = tmp_path / f"local-{record.number}"
        followed = write_local_delta(followed, content, Position.of(record), "test", target)
        served = DeltaModel(served, FrozenDelta(target))
        assert same_content(followed, publisher.model)
        assert served.manifest == followed.manifest
    whole = write_whole(followed, tmp_path / "whole")
    assert same_content(FollowedModel.of(FrozenModel(whole.folder)), publisher.model)
    with pytest.raises(ServeError, match="does not have"):
        first.advance(
            DeltaContent({"t_int8": RowChanges(torch.tensor([40]), first.tables["t_int8"]["rows"][:1])}),
            Position(STREAM, 2, 0, 1, 1.0),
            "it",
        )


def _empty(model: FollowedModel, folder: Path) -> Path:
    write_local_delta(model, DeltaContent({}), Position(STREAM, 1, 0, 1, 1.0), "it", folder / "empty")
    return folder / "empty"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_of_several_changes_the_newest_of_each_row_counts(data: st.DataObject) -> None:
    ids = st.sets(st.integers(0, 12), max_size=8)
    contents, wanted = [], dict[int, int | None]()
    for value in range(4):
        changed, deleted = data.draw(ids), data.draw(ids)
        deleted -= changed
        wanted |= dict.fromkeys(changed, value) | dict.fromkeys(deleted)
        rows = torch.full((len(changed), 2), value, dtype=torch.uint8)
        change = RowChanges(
            torch.tensor(sorted(changed), dtype=torch.int64),
            rows,
            torch.tensor(sorted(deleted), dtype=torch.int64),
        )
        contents.append(DeltaContent({"t": change}))
    found = newest(contents).tables["t"]
    assert isinstance(found, RowChanges)
    got = dict(zip(found.ids.tolist(), found.rows[:, 0].tolist(), strict=True))
    assert got == {key: value for key, value in wanted.items() if value is not None}
    assert found.deleted.tolist() == sorted(key for key, value in wanted.items() if value is None)
    halves = newest([newest(contents[:2]), newest(contents[2:])]).tables["t"]
    assert isinstance(halves, RowChanges)
    assert torch.equal(halves.ids, found.ids)
    assert torch.equal(halves.rows, found.rows)
    assert torch.equal(halves.deleted, found.deleted)
