"""A run that is watched: load of ranks in its reports, anomalies in its data, numbers on a real port."""

from __future__ import annotations

import json
import math
import socket
import urllib.error
import urllib.request
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from megalith.core.errors import ConfigError
from megalith.core.files import read_jsonl
from megalith.core.schema import FeatureSpec
from megalith.core.trace import read_spans
from megalith.data.dataset import DatasetSchema, Split, write_schema
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

BATCH, BAD_STEP = 50, 30


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory):
    """2,000 rows whose numbers are enormous in one batch, and a feature without any id."""
    folder = tmp_path_factory.mktemp("odd")
    rows = 2000
    generator = np.random.default_rng(0)
    number = generator.normal(size=rows).astype(np.float32)
    number[BATCH * (BAD_STEP - 1) : BATCH * BAD_STEP : 2] = 3e38
    number[BATCH * (BAD_STEP - 1) + 1 : BATCH * BAD_STEP : 2] = -3e38
    columns = {
        "label": generator.integers(0, 2, rows).astype(np.float32),
        "number": number,
        "a": generator.integers(0, 50, rows).astype(np.int32),
        "empty": pa.array([[]] * rows, pa.list_(pa.int32())),
    }
    (folder / "train").mkdir()
    pq.write_table(pa.table(columns), folder / "train/part-00000.parquet")
    features = (FeatureSpec(name="a", num_ids=50), FeatureSpec(name="empty", num_ids=50, max_length=3))
    write_schema(
        folder,
        DatasetSchema(
            source="generated",
            label="label",
            weight=None,
            numeric=("number",),
            categorical=features,
            splits={"train": Split(rows=rows, positives=0, files=("train/part-00000.parquet",))},
        ),
    )
    return folder


def odd_recipe(folder, tmp_path, *overrides):
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"""
name: odd
data: {{path: {folder}, batch_size: {BATCH}, threads: 1, prefetch: 1, shuffle: no}}
model: {{kind: dlrm, dim: 16, bottom: {{layers: [64]}}, top: {{layers: [64]}}}}
train: {{steps: 40, log_every: 1, tensorboard: no, stall_seconds: null}}
"""
    )
    return load_recipe(str(path), overrides)


def test_a_run_names_the_step_of_odd_numbers_and_the_table_that_nobody_uses(odd_data, tmp_path):
    printed = StringIO()
    trainer = Trainer(odd_recipe(odd_data, tmp_path), tmp_path / "run", Console(file=printed, width=400))
    summary = trainer.train()
    lines = [line for line in read_jsonl(tmp_path / "run/metrics.jsonl") if line["kind"] == "anomaly"]
    found = {(line["anomaly"], line.get("table")): line for line in lines}
    assert len(found) == len(lines)
    # The forward pass of the odd batch overflows.
    assert found["loss not finite", None]["step"] == BAD_STEP
    assert found["exploding norm", None]["step"] == BAD_STEP
    assert found["dead table", "empty"]["step"] == 5
    assert [key for key in found if key[0] == "dead table"] == [("dead table", "empty")]
    assert all(line["message"] in printed.getvalue() for line in lines)
    assert summary["anomalies"] == [line["message"] for line in lines]


def test_reports_have_the_load_of_the_rank(whole):
    reports = [line for line in read_jsonl(whole.metrics) if line["kind"] == "train"]
    steps = 0
    for report in reports:
        [load] = report["ranks"]
        # 26 features of one id in batches of 256.
        assert load["lookups"] == 26 * 256 * (report["step"] - steps)
        steps = report["step"]
        assert load["table_bytes"]["weights"] > 0
        assert load["resident_bytes"] > load["table_bytes"]["weights"]
        assert load["sent_bytes"] == load["rank_wait_seconds"] == 0
    names = {(span["thread"].rstrip("_0123456789"), span["name"]) for span in read_spans([whole.trace])}
    assert {
        ("MainThread", name)
        for name in ("read", "step", "forward", "look up rows", "backward", "update rows", "update dense")
    } <= names


class Scrape:
    """Reads the port from within the run, when a line has been written."""

    def __init__(self, url):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            self.families = {
                family.name: family for family in text_string_to_metric_families(answer.read().decode())
            }

    def values(self, name):
        return {
            tuple(sample.labels.values()): sample.value
            for sample in self.families[f"megalith_train_{name}"].samples
        }


class Scraping(Console):
    """A console on which the run says where its numbers are; anomalies make it read them."""

    def __init__(self):
        super().__init__(file=StringIO(), width=400)
        self.url, self.scrapes = None, []

    def print(self, text, **options):
        sentence = text.plain
        if sentence.startswith("Metrics for Prometheus: "):
            self.url = sentence.rpartition(" ")[2]
            self.scrapes.append(Scrape(self.url))
        super().print(text, **options)


def test_prometheus_reads_the_run_on_a_loopback_port_while_it_trains(odd_data, tmp_path, monkeypatch):
    console = Scraping()
    trainer = Trainer(odd_recipe(odd_data, tmp_path, "train.metrics_port=0"), tmp_path / "run", console)
    step = trainer.learner.step

    def step_and_scrape(*arguments):
        taken = step(*arguments)
        if trainer.step == BAD_STEP + 1:
            console.scrapes.append(Scrape(console.url))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(console.url.replace("metrics", "other"), timeout=60)
        return taken

    monkeypatch.setattr(trainer.learner, "step", step_and_scrape)
    trainer.train()
    assert console.url.startswith("http://127.0.0.1:")
    before, later = console.scrapes
    assert before.values("step") == {(): 0}
    assert before.values("steps") == {(): 40}
    assert later.values("step") == {(): BAD_STEP + 1}
    assert later.values("samples") == {(): BATCH * (BAD_STEP + 1)}
    entries = read_jsonl(tmp_path / "run/metrics.jsonl")
    losses = {entry["step"]: entry["loss"] for entry in entries if entry["kind"] == "train"}
    assert losses[BAD_STEP] == math.inf
    assert later.values("loss")[()] == pytest.approx(losses[BAD_STEP + 1], rel=1e-5)
    assert later.values("anomalies") == {
        ("loss not finite",): 1,
        ("exploding norm",): 1,
        ("dead table",): 1,
        ("stalled reader",): 0,
    }
    assert later.values("table_bytes")["0", "memory", "weights"] > 100 * 4 * 4
    assert later.values("lookups") == {("0",): BATCH}
    assert set(later.values("wait_seconds")) == {("0", "data"), ("0", "ranks")}
    assert later.values("span_seconds")["loop", "update rows"] > 0
    # The port is let go of with the run.
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(console.url, timeout=60)


def test_a_port_that_is_taken_is_named_before_a_step_is_taken(odd_data, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        trainer = Trainer(odd_recipe(odd_data, tmp_path, f"train.metrics_port={port}"), tmp_path / "run")
        with pytest.raises(
            ConfigError, match=f"train.metrics_port={port} cannot be listened on at 127.0.0.1"
        ):
            trainer.train()
    assert trainer.step == 0


def test_watching_changes_nothing_that_is_learnt(odd_data, tmp_path):
    evaluations = []
    for name, overrides in (("watched", ()), ("alone", ("train.trace=false", "train.log_every=40"))):
        recipe = odd_recipe(odd_data, tmp_path, "train.steps=25", *overrides)
        trainer = Trainer(recipe, tmp_path / name)
        trainer.train()
        evaluations.append(json.dumps({k: v.tolist() for k, v in trainer.learner.dense.state_dict().items()}))
    assert evaluations[0] == evaluations[1]
