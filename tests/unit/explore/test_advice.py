"""What an error advises is what a job accepts: followed again and again, it leads to a prediction."""

from __future__ import annotations

import re

import pytest

from megalith.core.errors import ConfigError, MegalithError
from megalith.explore import Prediction, load_job, predict

WRONG = [
    ("gpt3-175b", ["parallel.pp=7"]),
    ("gpt3-175b", ["parallel.tp=7", "parallel.pp=5"]),
    ("gpt3-175b", ["parallel.tp=64", "parallel.dp=64", "parallel.global_batch=1"]),
    ("gpt3-175b", ["parallel.ep=2"]),
    ("gpt3-175b", ["training.schedule=1f1b"]),
    ("gpt3-175b", ["parallel.micro_batch=64", "parallel.global_batch=65"]),
    ("gpt3-175b", ["parallel.pp=1", "parallel.vpp=1", "parallel.tp=8", "parallel.dp=8"]),
    ("gpt3-175b", ["model=llama3-405b", "parallel.pp=16", "parallel.vpp=8", "cluster.levels.1.count=512"]),
    ("gpt3-175b", ["model=qwen3-235b-a22b", "parallel.ep=3", "cluster.levels.1.count=64"]),
    ("gpt3-175b", ["parallel.cp=7"]),
]
MOST_STEPS = 8


@pytest.mark.parametrize(("name", "overrides"), WRONG)
def test_advice_leads_to_a_prediction(name: str, overrides: list[str]) -> None:
    assert _followed(name, overrides).step_seconds > 0


def _followed(name: str, overrides: list[str]) -> Prediction:
    said: list[str] = []
    for _ in range(MOST_STEPS):
        prediction, sentence = _asked(name, overrides)
        if prediction:
            return prediction
        said.append(sentence)
        advice = re.search(r"; take ((?:[a-z_.0-9]+=\S+? ?)+?)(?:,|\.?$| or )", sentence)
        assert advice, f"no settings in: {sentence}"
        assert not set(advice.group(1).split()) <= set(overrides), said
        overrides = [*overrides, *advice.group(1).split()]
    raise AssertionError(said)


def _asked(name: str, overrides: list[str]) -> tuple[Prediction | None, str]:
    try:
        return predict(load_job(name, overrides)), ""
    except MegalithError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("cluster.levels.1.latency_seconds=1e9", "should be less than or equal to 60"),
        ("cluster.levels.1.gigabits_per_second=.inf", "should be a finite number"),
        ("cluster.levels.1.gigabits_per_second=1e30", "should be less than or equal to"),
        ("cluster.levels.1.count=1000000000000", "should be less than or equal to"),
        ("model.layers=1000000000000", "should be less than or equal to"),
        ("parallel.global_batch=1000000000000000000", "should be less than or equal to"),
        ("cluster.levels.7.count=2", "must be a position in a list of 2"),
    ],
)
def test_absurd_values_are_refused_in_a_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_job("gpt3-175b", [override])


def test_levels_of_a_named_cluster_can_be_overridden() -> None:
    job = load_job({"model": "llama3-8b", "cluster": "dgx-h100"}, ["cluster.levels.1.count=32"])
    assert job.cluster.levels[1].count == 32
