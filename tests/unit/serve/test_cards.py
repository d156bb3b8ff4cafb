"""Cards as processes: the bits of one process, whole and cut; nothing left behind; threads bounded."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from megalith.core.errors import PlanError, ServeError
from megalith.export.backends.conformance.models import probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.manifest import DENSE_FILE
from megalith.export.partition.served.from_manifest import served_manifest
from megalith.serve.engine import Engine, EngineSettings
from megalith.serve.failures import BadRequestError
from megalith.serve.runtime.placement import place_version
from served_models import ask, equal, in_process, opened, submit, write_model

MODEL = "probe-float32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "probe")


def check_answers(engine: Engine, folder: Path, name: str = MODEL, count: int = 12) -> None:
    """Requests of many sizes, at once, tiled and with the user apart, all bit for bit."""
    model = opened(folder)
    maker = RequestMaker(model, "whole")
    waiting = []
    for seed in range(count):
        tiled = maker.request((1, 3, 17, 300)[seed % 4], seed=seed)
        answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        sent = maker.with_user_apart(tiled) if seed % 3 else tiled
        submit(engine, name, sent, answers.put)
        waiting.append((tiled, answers))
    for tiled, answers in waiting:
        answer = answers.get(timeout=120)
        assert not isinstance(answer, Exception), answer
        assert equal(answer, in_process(model, tiled))


@pytest.mark.parametrize(("cards", "partitions"), [(2, None), (4, 4)])
def test_cards_give_the_bits_of_the_backend_in_process(
    folder: Path, cards: int, partitions: int | None
) -> None:
    with Engine(EngineSettings(cards=cards, partitions=partitions, split=64)) as engine:
        engine.load(folder)
        check_answers(engine, folder)
        assert engine.status()["models"][0]["mode"] == ("partitions" if partitions else "replicas")
        request = RequestMaker(opened(folder), "whole").request(3)
        with pytest.raises(BadRequestError, match="adds up"):
            ask(engine, MODEL, request._replace(lengths=request.lengths + 1))
        check_answers(engine, folder, count=4)


@pytest.mark.slow
@pytest.mark.parametrize("cards", [1, 2, 4, 6])
@pytest.mark.parametrize("partitions", ["replicas", "partitions"])
@pytest.mark.parametrize(
    ("precision", "products"), [("float32", "float32"), ("int8", "u8s7"), ("int8", "u8s8")]
)
def test_up_to_six_cards_give_the_bits_of_the_backend_in_process(
    tmp_path: Path, cards: int, partitions: str, precision: str, products: str
) -> None:
    folder = write_model(tmp_path / "probe", probe_model(precision, products))
    cut = cards if partitions == "partitions" else None
    with Engine(EngineSettings(cards=cards, partitions=cut, split=64)) as engine:
        engine.load(folder)
        check_answers(engine, folder, f"probe-{products}", count=60)


def test_vectors_of_float16_between_cards_are_near(folder: Path) -> None:
    with Engine(EngineSettings(cards=2, partitions=2, pooled="float16")) as engine:
        engine.load(folder)
        request = RequestMaker(opened(folder), "whole").request(20)
        wanted = in_process(opened(folder), request)
        got = ask(engine, MODEL, request).outputs
        assert all(abs(got[task] - wanted[task].numpy()).max() < 2e-3 for task in wanted)


def test_a_model_is_cut_over_the_fewest_cards_that_hold_it(folder: Path) -> None:
    model = served_manifest(opened(folder).manifest, folder / DENSE_FILE)
    tables, dense = model.table_bytes, model.dense.weight_bytes
    for share, partitions in ((1.0, 1), (0.6, 2), (0.4, 3)):
        settings = EngineSettings(cards=3, card_memory=dense + int(share * tables))
        placed = place_version(opened(folder).manifest, folder / DENSE_FILE, settings)
        assert max(1, len(placed.partitions)) == partitions
        held = [name for tables_of_card in placed.partitions for name in tables_of_card]
        assert partitions == 1 or sorted([*held, *placed.host]) == sorted(one.name for one in model.tables)
    with pytest.raises(PlanError, match="more cards"):
        place_version(
            opened(folder).manifest, folder / DENSE_FILE, EngineSettings(cards=3, card_memory=dense + 10)
        )


def test_a_folder_that_is_damaged_is_refused_and_the_engine_goes_on(folder: Path, tmp_path: Path) -> None:
    damaged = write_model(tmp_path / "damaged")
    path = damaged / "dense.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Engine(EngineSettings(cards=1)) as engine:
        engine.load(folder)
        with pytest.raises(ServeError, match=r"dense\.safetensors is damaged"):
            engine.load(damaged)
        check_answers(engine, folder, count=4)


def test_the_process_that_forks_has_one_thread_and_cards_have_theirs(folder: Path) -> None:
    with Engine(EngineSettings(cards=2, threads=1)) as engine:
        engine.load(folder)
        check_answers(engine, folder)
        processes = [engine._fleet.processes.process, *(card["process"] for card in engine.status()["cards"])]
        assert [len(os.listdir(f"/proc/{process}/task")) for process in processes] == [1, 1, 1]  # noqa: PTH208


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_behind_however_the_front_ends(folder: Path, how: signal.Signals) -> None:
    program = textwrap.dedent(f"""
        import sys, time
        from megalith.serve.engine import Engine, EngineSettings
        engine = Engine(EngineSettings(cards=2))
        engine.load({str(folder)!r})
        processes = [engine._fleet.processes.process, *(c["process"] for c in engine.status()["cards"])]
        print(*processes, flush=True)
        time.sleep(600)
    """)
    front = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    processes = [int(one) for one in front.stdout.readline().split()]
    assert len(processes) == 3
    front.send_signal(how)
    front.wait()
    front.stdout.close()
    until = time.monotonic() + 60
    while any(_lives(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [process for process in processes if _lives(process)]


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
