"""A server that follows a stream has its versions in order, bit for bit, whatever becomes of their files."""

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as arrow_fs
import pytest
import torch

from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.stream.records import delta_file, snapshot_folder, version_file
from megalith.export.stream.storage import StreamStorage
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.follow.copies import LocalCopies
from megalith.serve.follow.follower import StreamFollower
from megalith.serve.follow.followers import Followers
from megalith.serve.follow.refusals import Refusals
from megalith.serve.follow.settings import FollowSettings
from served_models import ask, equal, in_process
from streamed_models import SmallPublisher, same_content

MODEL = probe_model().manifest.name
REQUEST = RequestMaker(probe_model(), "whole").request(40)


class Served:
    """An engine that follows what is at a place, looked at when a test says so."""

    def __init__(self, uri: Path | str, folder: Path, cards: int = 0, **settings: object) -> None:
        self.said: list[str] = []
        self.engine = Engine(EngineSettings(cards=cards, load_share=1.0))
        self.copies = LocalCopies(folder)
        chosen = FollowSettings((str(uri),), every_seconds=1e-6, **settings)  # type: ignore[arg-type]
        self.follower = StreamFollower(str(uri), self.engine, chosen, self.copies, self.said.append)

    def look(self) -> int:
        """Takes all that can be taken; the version that serves."""
        while self.follower.look():
            pass
        return self.follower.status.version

    def has(self, publisher: SmallPublisher) -> bool:
        """Whether rows, weights and answers are those of the version that it says it serves."""
        held = self.follower._held
        assert held is not None
        wanted = publisher.versions[held.position.number]
        answer = ask(self.engine, MODEL, REQUEST)
        outputs = equal(answer, in_process(wanted, REQUEST))
        return same_content(held.model, wanted) and outputs and answer.version == str(held.position.number)

    def close(self) -> None:
        self.engine.close()
        self.copies.close()


@pytest.fixture
def publisher(tmp_path: Path) -> SmallPublisher:
    found = SmallPublisher(StreamStorage.of(str(tmp_path / "live")), tmp_path / "work")
    found.snapshot()
    return found


@pytest.fixture
def served(publisher: SmallPublisher, tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "live", tmp_path / "copies")
    yield found
    found.close()


@pytest.mark.parametrize(
    "cards", [pytest.param(0, id="threads"), pytest.param(2, id="processes", marks=pytest.mark.slow)]
)
def test_every_answer_is_of_the_version_that_it_names_and_versions_go_up(
    publisher: SmallPublisher, tmp_path: Path, cards: int
) -> None:
    served = Served(tmp_path / "live", tmp_path / "copies", cards)
    assert served.look() == 1
    seen, stop = [], threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            seen.append(ask(served.engine, MODEL, REQUEST))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        for number in range(2, 5):
            publisher.delta()
            assert served.look() == number
            assert served.has(publisher)
    finally:
        stop.set()
        thread.join()
        served.close()
    numbers = [int(answer.version) for answer in seen]
    assert numbers == sorted(numbers)
    wanted = {number: in_process(model, REQUEST) for number, model in publisher.versions.items()}
    assert all(equal(answer, wanted[int(answer.version)]) for answer in seen)
    assert (served.follower.status.deltas, served.follower.status.snapshots) == (3, 1)


def test_lost_repeated_and_late_deltas_leave_the_server_with_the_trainer_s_bits(
    publisher: SmallPublisher, tmp_path: Path
) -> None:
    """Of 30 versions a courier drops 10% for ever, brings 10% twice and 10% late, in no order."""
    draw, arrived = random.Random(3), tmp_path / "arrived"
    numbers = range(2, 31)
    lost, late, twice = (set(draw.sample(numbers, 3)) for _ in range(3))
    (arrived / "versions").mkdir(parents=True)

    def bring(name: str) -> None:
        source, target = tmp_path / "live" / name, arrived / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, target)

    served = Served(arrived, tmp_path / "copies")
    waiting, before, problems = [1], 0, 0
    bring(snapshot_folder(1))
    for number in range(1, 31):
        if number > 1:
            publisher.delta()
            waiting.append(number)
        if number % 10 == 0:
            publisher.writer.compact(tmp_path / "work")
            bring(snapshot_folder(number))
            lost.discard(number)
            late.discard(number)
        draw.shuffle(waiting)
        for each in list(waiting):
            if each in lost or (each in late and number < each + 3):
                continue
            for name in [delta_file(each), version_file(each)] * (1 + (each in twice)):
                bring(name)
            waiting.remove(each)
        version = served.look()
        assert version >= before
        before = version
        problems += bool(served.follower.status.problem)
        assert served.has(publisher)
    assert problems
    assert before == 30
    assert not served.follower.status.problem
    assert served.has(publisher)
    served.close()


def test_a_damaged_delta_is_refused_by_name_and_taken_when_it_comes_right(
    publisher: SmallPublisher, served: Served, tmp_path: Path
) -> None:
    assert served.look() == 1
    publisher.delta()
    publisher.delta()
    path = tmp_path / "live" / delta_file(2)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert served.look() == 1
    assert str(path) in served.follower.status.problem
    assert "damaged" in served.follower.status.problem
    assert served.said[-1].endswith("Version 1 goes on serving.")
    assert served.follower.status.refused == 1
    assert served.has(publisher)
    path.write_bytes(good)
    assert served.look() == 3
    assert served.has(publisher)
    assert served.said[-1] == f"Version 3 of '{MODEL}' serves; nothing is missing."


@pytest.mark.parametrize("name", [delta_file(2), version_file(2)])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "other"])
def test_a_version_that_cannot_be_read_is_passed_by_the_next_snapshot(
    publisher: SmallPublisher, served: Served, tmp_path: Path, name: str, how: str
) -> None:
    assert served.look() == 1
    publisher.delta()
    publisher.delta()
    publisher.writer.compact(tmp_path / "work")
    path = tmp_path / "live" / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "cut": content[:50], "other": bytes(len(content))}[how])
    assert served.look() == 3
    assert served.has(publisher)
    assert served.follower.status.snapshots == 2


def test_a_damaged_snapshot_is_named_and_the_one_before_is_taken(
    publisher: SmallPublisher, served: Served, tmp_path: Path
) -> None:
    publisher.delta()
    publisher.writer.compact(tmp_path / "work")
    first, second = (tmp_path / "live" / snapshot_folder(n) / "tables-00000.safetensors" for n in (1, 2))
    good = first.read_bytes()
    for path in (first, second):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert served.look() == 0
    assert str(second) in served.follower.status.problem
    assert not served.engine.ready()
    first.write_bytes(good)
    assert served.look() == 2
    assert served.follower.status.snapshots == served.follower.status.deltas == 1
    assert served.has(publisher)


def test_changes_are_written_into_one_model_when_there_are_many(
    publisher: SmallPublisher, tmp_path: Path
) -> None:
    served = Served(tmp_path / "live", tmp_path / "copies", chain=3, changed_share=100.0)
    served.look()
    for number in range(2, 14):
        publisher.delta()
        assert served.look() == number
        assert served.has(publisher)
        held = served.follower._held
        assert held is not None
        assert len(held.folders) <= 4
    assert served.follower.status.rebuilt >= 3
    # What no version needs is removed, after a while in which requests may still look at it.
    for position, (_, path) in enumerate(served.copies._unwanted):
        served.copies._unwanted[position] = (0.0, path)
    served.copies.sweep()
    assert sorted(served.copies.folder.iterdir()) == sorted([*held.folders, served.copies.folder / "lock"])
    served.close()
    assert not served.copies.folder.exists()


def test_a_version_without_numbers_for_scores_is_refused_and_the_next_one_taken(
    publisher: SmallPublisher, served: Served, tmp_path: Path
) -> None:
    served.look()
    ask(served.engine, MODEL, REQUEST)
    sound = publisher.model
    broken = publisher.change()
    nans = {name: torch.full_like(weight, float("nan")) for name, weight in broken.dense.items()}
    content = type(broken)(broken.tables, nans)
    publisher.writer.add_delta(content, 2, 1002.0, tmp_path)
    assert served.look() == 1
    assert delta_file(2) in served.follower.status.problem
    assert "does not take over" in served.follower.status.problem
    assert equal(ask(served.engine, MODEL, REQUEST), in_process(sound, REQUEST))
    publisher.delta()
    assert served.look() == 3
    assert served.has(publisher)


def test_a_model_that_someone_unloaded_is_served_again_with_the_next_version(
    publisher: SmallPublisher, served: Served
) -> None:
    served.look()
    publisher.delta()
    served.look()
    served.engine.unload(MODEL)
    publisher.delta()
    assert served.look() == 3
    assert served.has(publisher)


@pytest.mark.slow
def test_deltas_are_loaded_again_after_the_end_of_the_process_that_forks(
    publisher: SmallPublisher, tmp_path: Path
) -> None:
    served = Served(tmp_path / "live", tmp_path / "copies", cards=1)
    for _ in range(3):
        served.look()
        publisher.delta()
    served.look()
    os.kill(served.engine._fleet.processes.process, signal.SIGKILL)
    assert served.has(publisher)
    publisher.delta()
    assert served.look() == 5
    assert served.has(publisher)
    served.close()


def test_another_stream_at_the_place_is_not_taken(
    publisher: SmallPublisher, served: Served, tmp_path: Path
) -> None:
    publisher.delta()
    assert served.look() == 2
    shutil.rmtree(tmp_path / "live")
    other = SmallPublisher(StreamStorage.of(str(tmp_path / "live")), tmp_path / "other", 1, "6" * 32)
    other.snapshot()
    for _ in range(4):
        other.delta()
    other.writer.compact(tmp_path / "other")
    assert served.look() == 2
    assert "another stream" in served.follower.status.problem
    assert served.has(publisher)


def test_a_stream_in_an_object_store_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server that speaks S3; a file of it is damaged on its way."""
    moto = pytest.importorskip("moto.server", reason="needs moto: pip install 'megalith[test]'")
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "eu-west-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    served = None
    try:
        at = f"127.0.0.1:{server.get_host_and_port()[1]}"
        arrow_fs.S3FileSystem(endpoint_override=at, scheme="http", allow_bucket_creation=True).create_dir(
            "live"
        )
        uri = f"s3://live/clicks?endpoint_override={at}&scheme=http"
        storage = StreamStorage.of(uri)
        publisher = SmallPublisher(storage, tmp_path / "work")
        publisher.snapshot()
        served = Served(uri, tmp_path / "copies")
        assert served.look() == 1
        for number in (2, 3):
            publisher.delta()
            assert served.look() == number
            assert served.has(publisher)
        publisher.delta()
        good = storage.read(delta_file(4))
        storage.write(delta_file(4), good[:100])
        assert served.look() == 3
        assert f"s3://live/clicks/{delta_file(4)} is damaged" in served.follower.status.problem
        storage.write(delta_file(4), good)
        assert served.look() == 4
        assert served.has(publisher)
        server.stop()
        assert served.look() == 4
        assert "s3://live/clicks" in served.follower.status.problem
        assert ask(served.engine, MODEL, REQUEST).version == "4"
    finally:
        server.stop()
        if served is not None:
            served.close()


def test_followers_take_what_is_there_and_what_comes(publisher: SmallPublisher, tmp_path: Path) -> None:
    settings = FollowSettings((str(tmp_path / "live"), str(tmp_path / "none")), 0.01, tmp_path / "copies")
    taken = threading.Event()
    with Engine(EngineSettings(cards=0)) as engine, Followers(settings, engine) as followers:
        followers.begin()
        assert [status.version for status in followers.statuses] == [1, 0]
        assert not followers.ready()
        assert "has no version yet" in followers.statuses[1].problem
        load = engine.load

        def loaded(*arguments: object, **options: object) -> object:
            report = load(*arguments, **options)  # type: ignore[arg-type]
            taken.set()
            return report

        engine.load = loaded  # type: ignore[method-assign, assignment]
        publisher.delta()
        assert taken.wait(60)
        assert ask(engine, MODEL, REQUEST).version == "2"


def test_what_a_killed_server_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    living = LocalCopies(tmp_path)
    (living.folder / "kept").touch()
    dead = tmp_path / "server-dead"
    (dead / "snapshot-1").mkdir(parents=True)
    (dead / "lock").touch()
    other = LocalCopies(tmp_path)
    assert not dead.exists()
    assert (living.folder / "kept").exists()
    assert sorted(tmp_path.iterdir()) == sorted([living.folder, other.folder])
    living.close()
    other.close()
    assert not list(tmp_path.iterdir())


def test_what_is_refused_is_tried_again_less_and_less_often() -> None:
    now = 0.0
    refusals = Refusals(1.0, lambda: now)
    tried = []
    for _ in range(200):
        if not refusals.current():
            tried.append(now)
            refusals.add("deltas/1", "it is damaged")
        now += 1.0
    assert tried == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0, 121.0, 151.0, 181.0]
    assert refusals.count == 1
    refusals.add("deltas/2", "it is damaged too")
    assert refusals.count == 2
    refusals.clear(keep=["deltas/2"])
    assert json.dumps(refusals.current()) == '{"deltas/2": "it is damaged too"}'
