"""Tables that forget when their utilities no longer predict their gradients."""

import itertools

import torch

from megalith.embeddings.stores.adaptive.forgetting import (
    FADING,
    FIRST_STEP,
    FORGOTTEN,
    REST,
    WINDOW,
    UtilityPredictions,
)

ROWS = 100


class Table:
    """Rows with utilities, of which some are hit in every step."""

    def __init__(self, predictions, number=0):
        self.predictions, self.number = predictions, number
        self.utilities = torch.zeros(ROWS)

    def step(self, hit, norm):
        """Gradients of one norm for some rows, as kernels count them."""
        own = self.predictions.tables[self.number]
        norms = torch.full((len(hit),), norm)
        numbers = norms * own.norm_scale, norms * self.utilities[hit] * own.product_scale
        for at, each in enumerate(numbers):
            self.predictions.sums[self.number, at] += each.double().round().long().sum()
        self.utilities[hit] += norms * self.predictions.weight(self.number, 1.0)


def run(steps, hit_of, norm_of=lambda step: 1.0, ranks=1):
    """The steps after which the first of two tables forgets; the second is never touched."""
    predictions = UtilityPredictions([ROWS, ROWS])
    table, forgot = Table(predictions), []
    for step in range(1, steps + 1):
        table.step(hit_of(step), norm_of(step))
        for number in predictions.after_step(step, 1.0, lambda sums: sums * ranks // ranks):
            forgot.append((number, step))
            table.utilities *= FORGOTTEN
            predictions.scale(FORGOTTEN, number)
    return forgot, predictions, table


def test_a_table_whose_ids_change_forgets_at_the_next_check_and_no_other():
    change = FIRST_STEP + 20 * WINDOW
    forgot, predictions, _ = run(change + 200, lambda step: torch.arange(10) + (50 if step > change else 0))
    assert forgot == [(0, change + WINDOW)]
    assert predictions.fades(change + WINDOW) == [0.0, 1.0]
    assert predictions.fades(change + WINDOW + FADING) == [1.0, 1.0]


def test_a_table_whose_ids_stay_never_forgets_whatever_the_size_of_its_gradients():
    generator = torch.Generator().manual_seed(0)
    popularity = 1 / torch.arange(1.0, ROWS + 1)

    def hits(_):
        return torch.multinomial(popularity, 20, generator=generator)

    forgot, predictions, _ = run(1000, hits, lambda step: 1e-6 * 0.99**step + 1e-9)
    assert forgot == []
    # Gradients count by what they are among those of their own time.
    assert predictions.tables[0].relative < 0.01


def test_there_is_a_rest_after_a_forgetting():
    change = FIRST_STEP + 20 * WINDOW

    def hits(step):
        return torch.arange(10) + 10 * ((step - change) // WINDOW % 9 if step > change else 0)

    forgot, _, _ = run(change + 3 * REST * WINDOW, hits)
    steps = [step for _, step in forgot]
    assert len(steps) > 1
    assert all(later - earlier > REST * WINDOW for earlier, later in itertools.pairwise(steps))


def test_its_state_goes_on_in_the_middle_of_a_window():
    change, halt = FIRST_STEP + 20 * WINDOW, FIRST_STEP + 20 * WINDOW + 2

    def hits(step):
        return torch.arange(10) + (50 if step > change else 0)

    _, predictions, table = run(halt, hits)
    again = UtilityPredictions([ROWS, ROWS])
    again.load_state_dict(predictions.state_dict(lambda sums: sums), is_first=True)
    table.predictions, forgot = again, []
    for step in range(halt + 1, change + WINDOW + 1):
        table.step(hits(step), 1.0)
        forgot += again.after_step(step, 1.0, lambda sums: sums)
    assert forgot == [0]


def test_sums_of_ranks_are_saved_once_and_loaded_by_the_first():
    ranks = [UtilityPredictions([ROWS, ROWS]) for _ in range(3)]
    for number, predictions in enumerate(ranks):
        predictions.sums[:, 0] = 10**number

    def add(_):
        return sum(predictions.sums for predictions in ranks)

    states = [predictions.state_dict(add) for predictions in ranks]
    assert states[0] == states[1] == states[2]
    for number, predictions in enumerate(ranks):
        predictions.load_state_dict(states[number], is_first=number == 1)
    assert [predictions.sums[:, 0].tolist() for predictions in ranks] == [[0, 0], [111, 111], [0, 0]]
