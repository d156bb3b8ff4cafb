"""Small Criteo-like text for the tests of preparation, and its preparation in plain Python."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from megalith.data.dataset import Dataset
from megalith.ops.text.keys_twin import token_key_twin
from megalith.ops.text.rows_twin import number_twin, signed_log_twin

NUM_NUMBERS, NUM_CATEGORIES = 13, 26


def criteo_lines(num_rows: int, seed: int = 0) -> list[str]:
    """Rows with skewed values, blanks, negative numbers and a few tokens too long to pack."""
    chance = random.Random(seed)
    lines = []
    for _ in range(num_rows):
        numbers = [
            "" if chance.random() < 0.2 else str(int(chance.expovariate(0.02)) - 2)
            for _ in range(NUM_NUMBERS)
        ]
        categories = []
        for feature in range(NUM_CATEGORIES):
            value = int(chance.paretovariate(0.1 + feature / 20)) * 2654435761 % 2**32
            token = f"{value:08x}" if feature else f"a-long-value-{value:x}"
            categories.append("" if chance.random() < 0.1 else token)
        lines.append("\t".join([str(chance.randrange(2)), *numbers, *categories]))
    return lines


def write_text(path: Path, lines: list[str], ending: str = "\n") -> Path:
    content = "".join(line + ending for line in lines).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = pa.Codec("zstd").compress(content, asbytes=True)
    path.write_bytes(content)
    return path


def read_split(folder: Path, split: str = "train") -> dict[str, list]:
    tables = [pq.read_table(path) for path in Dataset(folder).files(split)]
    return pa.concat_tables(tables).to_pydict()


def plain_prepare(
    train: list[str], lines: list[str], min_count: int, max_vocabulary: int | None = None
) -> dict[str, list]:
    """What the columns of `lines` must be, with a vocabulary from `train`."""
    vocabularies = []
    for place in range(1 + NUM_NUMBERS, 1 + NUM_NUMBERS + NUM_CATEGORIES):
        keys = [token_key_twin(line.split("\t")[place].encode()) for line in train]
        counts = Counter(key for key in keys if key)
        order = sorted(
            (key for key in counts if counts[key] >= min_count),
            key=lambda key, counts=counts: (-counts[key], key),
        )
        vocabularies.append({key: number for number, key in enumerate(order[:max_vocabulary], start=2)})
    columns: dict[str, list] = {"label": []}
    for line in lines:
        label, *tokens = line.split("\t")
        columns["label"].append(float(label))
        for number, token in enumerate(tokens[:NUM_NUMBERS], start=1):
            value = signed_log_twin(number_twin(token.encode()) or 0.0) if token else 0.0
            columns.setdefault(f"I{number}", []).append(pa.scalar(value, pa.float32()).as_py())
        for number, token in enumerate(tokens[NUM_NUMBERS:], start=1):
            key = token_key_twin(token.encode())
            columns.setdefault(f"C{number}", []).append(vocabularies[number - 1].get(key, 1) if key else 0)
    return columns
