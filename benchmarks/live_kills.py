"""Does continuous training with live updates survive kills, and how fresh is what is served meanwhile?

    python benchmarks/live_kills.py --workdir /tmp/live --out benchmarks/results/live-kills.json
    python benchmarks/live_kills.py --workdir /tmp/live --out /tmp/short.json --kills 6 --pause 8

Four processes: a writer of data that adds a file every second, a trainer on that folder which publishes every
second, and two servers that follow it behind one port (--share-port). Every `--pause` seconds one of them,
drawn at random, is killed with SIGKILL and started again; of the servers never the last that answers. All the
while a client asks the address, on a new connection each time, and tries again where one breaks.

At the end the trained tables and weights are compared with those of a run that had all files from the
beginning and was not disturbed, and the scores of both servers with its scores.

Freshness is the time from reading rows at the trainer for one version, after which other rows may change,
until the next version serves: what the oldest change in a version waited. `first` is by the server that is
first, `all` until no answer is of an older version.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pyarrow.csv as csv
import pyarrow.parquet as pq

from megalith.bench.runner import result, save_result
from megalith.core.files import read_jsonl
from megalith.export.folder import FrozenModel

NAMES = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
AFTER_KILL = 60.0
"""Seconds after a kill of the trainer in which freshness is counted apart."""
RECIPE = """
name: live
data:
  path: {logs}
  batch_size: 100
  raw: {{source: criteo, hash_buckets: 20000}}
  growing: {{look_seconds: 0.2}}
model: {{kind: dlrm, dim: 16, bottom: {{layers: [64, 16]}}, top: {{layers: [64]}}}}
train: {{steps: 100000000, log_every: 20, checkpoint_every: 20, tensorboard: no, trace: no}}
"""


def megalith(*arguments: Any) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "megalith", *map(str, arguments)]


@dataclass
class Part:
    """A process that is started again whenever it ends by a signal."""

    name: str
    command: list[str]
    log: Path
    says_ready: bool = False
    process: subprocess.Popen[str] | None = None
    started: float = 0.0
    ready: threading.Event = field(default_factory=threading.Event)
    starts: int = 0
    code: int | None = None

    def start(self) -> None:
        """Begins, anew."""
        self.ready.clear()
        self.starts += 1
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        # A server prints a line once it listens; what others print is not needed.
        for _ in lines:
            if self.says_ready:
                self.ready.set()

    def kill(self) -> None:
        """SIGKILL, and a new start."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()

    def ended(self) -> bool:
        """Whether it has come to its own end; an end with an error is none that this survives."""
        assert self.process is not None
        self.code = self.process.poll()
        if self.code:
            raise SystemExit(f"{self.name} ended with code {self.code}; see {self.log}")
        return self.code == 0


class Client:
    """Asks the address all the time, on new connections."""

    def __init__(self, port: int, body: bytes, patience: float) -> None:
        self._port, self._body, self._patience = port, body, patience
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers: list[tuple[float, int]] = []
        """When, and of which version."""
        self.tried_again = 0
        self.longest = 0.0
        self.unanswered: list[str] = []

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the request under way."""
        self._ends.set()
        self._thread.join()

    def ask(self) -> tuple[int, list[float]]:
        """The version and the scores of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._patience)
        try:
            connection.request("POST", "/v2/models/live/infer", self._body)
            response = connection.getresponse()
            content = json.loads(response.read())
            if response.status != 200:
                raise ConnectionError(str(content))
            return int(content["model_version"]), content["outputs"][0]["data"]
        finally:
            connection.close()

    def _run(self) -> None:
        while not self._ends.wait(0.05):
            began, problem = time.time(), ""
            while time.time() - began < self._patience:
                try:
                    version, _ = self.ask()
                except (OSError, http.client.HTTPException) as error:
                    problem = f"{type(error).__name__}: {error}"
                    self.tried_again += 1
                    continue
                self.answers.append((time.time(), version))
                self.longest = max(self.longest, time.time() - began)
                break
            else:
                self.unanswered.append(problem)


def write_days(source: Path, folder: Path, pause: float) -> None:
    """The writer of data: the next file, every so often, from where an earlier one was killed."""
    for path in sorted(source.iterdir()):
        if (folder / path.name).exists():
            continue
        shutil.copyfile(path, folder / f"{path.name}.tmp")
        (folder / f"{path.name}.tmp").rename(folder / path.name)
        time.sleep(pause)


def make_days(folder: Path, count: int, rows: int) -> None:
    """The files that will come."""
    log = folder.parent / "log"
    total = count * rows
    made = megalith("data", "synth", "criteo", "--rows", total, "--valid-rows", 300, "--test-rows", 300)
    subprocess.run([*made, "--format", "text", "--out", log], check=True, stdout=subprocess.DEVNULL)
    folder.mkdir()
    with (log / "train.tsv").open("rb") as lines:
        for number in range(count):
            (folder / f"day-{number:06d}.tsv").write_bytes(b"".join(next(lines) for _ in range(rows)))


def raw_request(path: Path) -> bytes:
    """The samples of a file as a request of raw columns."""
    rows = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=NAMES),
        parse_options=csv.ParseOptions(delimiter="\t"),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(NAMES, "string")),
    )
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [len(rows)], "data": rows[name].to_pylist()}
        for name in NAMES[1:]
    ]
    return json.dumps({"inputs": inputs}).encode()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def wait_for(done: Any, what: str, seconds: float = 180.0) -> None:
    """Until something is so."""
    until = time.time() + seconds
    while not done():
        if time.time() > until:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def disturbed(arguments: argparse.Namespace, work: Path, days: Path) -> dict[str, Any]:
    """The run with kills; what was seen of it."""
    logs, live, port = work / "logs", work / "live", free_port()
    logs.mkdir()
    recipe = work / "live.yaml"
    recipe.write_text(RECIPE.format(logs=logs))
    publish = f"publish={{uri: {live}, every_seconds: {arguments.every_seconds}, tables: float32}}"
    writing = [sys.executable, __file__, "--writer", str(days), str(logs), str(arguments.file_seconds)]
    training = megalith("train", recipe, publish, "--out", work / "run", "--resume", "--json")
    serving = megalith("serve", "--follow", live, "--follow-seconds", 0.2, "--http", port, "--share-port")
    serving += ["--cards", "1", "--json", "--follow-folder", str(work / "copies")]
    writer = Part("writer", writing, work / "writer.log")
    trainer = Part("trainer", training, work / "trainer.log")
    servers = [Part(f"server {n}", serving, work / f"server-{n}.log", says_ready=True) for n in range(2)]
    parts = [writer, trainer, *servers]
    client = Client(port, raw_request(work / "log" / "test.tsv"), arguments.patience)
    kills: list[dict[str, Any]] = []
    draw = random.Random(arguments.seed)
    try:
        writer.start()
        wait_for(lambda: any(logs.glob("day-*.tsv")), "the first file")
        trainer.start()
        wait_for(lambda: any((live / "versions").glob("*.json")), "the first version")
        for server in servers:
            server.start()
        wait_for(lambda: all(server.ready.is_set() for server in servers), "two servers")
        client.start()
        while len(kills) < arguments.kills:
            time.sleep(arguments.pause * draw.uniform(0.5, 1.5))
            part = draw.choice([writer, trainer, draw.choice(servers)])
            if part in servers:
                wait_for(lambda: all(server.ready.is_set() for server in servers), "both servers")
            if part.ended():
                continue
            kills.append({"part": part.name, "time": time.time()})
            part.kill()
            print(f"{len(kills)} of {arguments.kills}: {part.name} killed", file=sys.stderr, flush=True)
        assert writer.process is not None
        writer.process.kill()
        writer.process.wait()
        (logs / "_END").touch()
        wait_for(trainer.ended, "the trainer", 600)
        newest = max(int(path.stem) for path in (live / "versions").glob("*.json"))
        wait_for(lambda: all(server.ready.is_set() for server in servers), "both servers")
        # Of both servers: one after the other is left alone with the address.
        wait_for(lambda: [one[1] for one in client.answers[-40:]] == [newest] * 40, "the newest version")
        client.stop()
        final = []
        for server in servers:
            others = [other for other in servers if other is not server]
            for other in others:
                assert other.process is not None
                other.process.send_signal(signal.SIGSTOP)
            final.append(_answer_of_the_only(client, newest))
            for other in others:
                assert other.process is not None
                other.process.send_signal(signal.SIGCONT)
    finally:
        for part in parts:
            if part.process is not None:
                part.process.kill()
                part.process.wait()
    return {
        "kills": kills,
        "answers": client.answers,
        "asked_again": client.tried_again,
        "longest_answer_seconds": client.longest,
        "unanswered": client.unanswered,
        "final_scores": final,
        "newest": newest,
        "published": [one for one in read_jsonl(work / "run" / "published.jsonl") if "version" in one],
        "starts": {part.name: part.starts for part in parts},
    }


def _answer_of_the_only(client: Client, newest: int) -> list[float]:
    """The scores of the server that is not stopped: connections that the other got time out."""
    client._patience = 1.0
    for _ in range(60):
        try:
            version, scores = client.ask()
        except (OSError, http.client.HTTPException):
            continue
        assert version == newest
        return scores
    raise SystemExit("A server gave no answer while it was alone.")


def undisturbed(work: Path) -> tuple[Path, list[float]]:
    """The run that had all files; its folder, and its scores."""
    calm = work / "calm"
    shutil.copytree(work / "logs", calm / "logs")
    (calm / "live.yaml").write_text(RECIPE.format(logs=calm / "logs"))
    for command in (
        megalith("train", calm / "live.yaml", "--out", calm / "run", "--json"),
        megalith("predict", calm / "run", work / "log" / "test.tsv", "--out", calm / "scores.parquet"),
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return calm / "run", pq.read_table(calm / "scores.parquet")["score"].to_pylist()


def same_models(first: Path, second: Path, work: Path) -> bool:
    """Whether two runs have the same tables and weights, bit for bit."""
    files = []
    for number, run in enumerate((first, second)):
        out = work / f"export-{number}"
        command = megalith("export", run, "--out", out, "--tables", "float32", "--no-gate", "--name", "live")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        manifest = FrozenModel(out).manifest
        names = [name for name in manifest.files if name.endswith(".safetensors")]
        files.append((manifest.step, {name: manifest.files[name] for name in names}))
    return files[0] == files[1]


def freshness(seen: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every version, all and those outside the time after a kill of the trainer."""
    answers, published = seen["answers"], seen["published"]
    kills = [kill["time"] for kill in seen["kills"] if kill["part"] == "trainer"]
    found: dict[str, list[float]] = {"first": [], "all": [], "first_calm": [], "all_calm": []}
    began = answers[0][0]
    for before, record in pairwise(published):
        if before["time"] < began:
            continue
        first = next((at for at, version in answers if version >= record["version"]), None)
        older = [at for at, version in answers if version < record["version"]]
        if first is None:
            continue
        last = max([first, *(at for at in older)])
        calm = all(not kill <= last <= kill + AFTER_KILL for kill in kills)
        for name, at in (("first", first), ("all", last)):
            found[name].append(at - before["time"])
            if calm:
                found[f"{name}_calm"].append(at - before["time"])
    return {
        name: {
            "versions": len(values),
            "median_seconds": round(statistics.median(values), 3) if values else None,
            "worst_seconds": round(max(values), 3) if values else None,
        }
        for name, values in found.items()
    }


def main() -> None:
    """Runs it."""
    if sys.argv[1:2] == ["--writer"]:
        write_days(Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--pause", type=float, default=15.0, help="mean seconds between kills")
    parser.add_argument("--every-seconds", type=float, default=1.0, help="between versions")
    parser.add_argument("--file-seconds", type=float, default=1.0, help="between files")
    parser.add_argument("--rows", type=int, default=430, help="of a file")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds for an answer, tries included")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    work = arguments.workdir.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    began = time.time()
    # More than can be needed: each kill may be followed by a wait for a server.
    count = int((arguments.kills + 1) * (arguments.pause + AFTER_KILL) / arguments.file_seconds)
    make_days(work / "days", count, arguments.rows)
    seen = disturbed(arguments, work, work / "days")
    calm, scores = undisturbed(work)
    files = len(list((work / "logs").glob("day-*.tsv")))
    kills = [kill["part"] for kill in seen["kills"]]
    outcome = {
        "kills": {name: kills.count(name) for name in sorted(set(kills))},
        "same_model": same_models(work / "run", calm, work),
        "servers_score_the_same": [final == scores for final in seen["final_scores"]],
        "answers": len(seen["answers"]),
        "unanswered": len(seen["unanswered"]),
        "asked_again": seen["asked_again"],
        "longest_answer_seconds": round(seen["longest_answer_seconds"], 3),
        "versions": seen["newest"],
        "files": files,
        "rows_trained": files * arguments.rows // 100 * 100,
        "freshness": freshness(seen),
        "starts": seen["starts"],
        "seconds": round(time.time() - began, 1),
    }
    print(json.dumps(outcome, indent=1))
    settings = {name: str(value) for name, value in vars(arguments).items() if name not in ("workdir", "out")}
    save_result(arguments.out, result("live-kills", settings, outcome, work))


if __name__ == "__main__":
    main()
