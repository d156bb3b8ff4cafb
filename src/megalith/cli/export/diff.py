"""`megalith diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megalith.cli.evaluate import CheckpointOption, TrustFlag
from megalith.cli.output import JsonFlag, print_json, print_table, say, working

if TYPE_CHECKING:
    from megalith.export.difference import DifferenceReport, PlaceDifference


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a run, or of an exported model.")],
    second: Annotated[
        Path | None,
        typer.Argument(metavar="B", help="What to compare it with; without it A on two backends."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BACKEND",
            help="What runs an exported model, such as native or native+onnxruntime; given twice, first that "
            "of A, then that of B [default: that of the model].",
        ),
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DATA_DIR",
            help="Raw rows, or a prepared data set with --split [default: samples that the model carries].",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of a prepared data set.")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="Requests that `megalith serve --record` kept; the first is taken.")
    ] = None,
    number: Annotated[int, typer.Option(min=0, help="Another of the recorded requests.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Rows to compare on, at most.")] = 256,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Share of a place's largest value by which it may differ [default: what its precisions "
            "explain]; 0 asks for equal bits.",
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Find the first table or layer in which two models differ, or one model on two backends.

    Both get the same rows. Every table and every layer of B is run on what A gave to its own, so that a layer
    is not blamed for what came before it. Ends with 1 where something differs by more than its precisions
    explain, with 0 where nothing does.
    """
    from megalith.cli.export.diff_sides import DiffRequest, compared_sides, rows_to_compare
    from megalith.export.difference import find_difference

    asked = DiffRequest(
        *(first, second, tuple(backend or ()), tuple(rows or ()), split, requests, number, samples),
        *(checkpoint, trust_code),
    )
    with working("comparing"):
        sides = compared_sides(asked)
        found = find_difference(*sides, rows_to_compare(asked), tolerance)
    if json_output:
        print_json(found.to_dict())
    else:
        _show(found)
    if found.first_different is not None:
        raise typer.Exit(1)


def _show(found: DifferenceReport) -> None:
    columns = ("", "place", "as", "own", "arriving", "explained")
    say(f"A: {found.first}")
    say(f"B: {found.second}")
    print_table(
        f"Largest difference on {found.samples:,} samples, as a share of the largest value",
        columns,
        [
            (
                place.kind,
                place.name,
                place.form,
                place.problem or _share(place.own, place.equal),
                _share(place.arriving, False),
                _share(place.expected, False),
            )
            for place in found.places
        ],
    )
    different = found.first_different
    if different is not None:
        say(f"The first that differs: {_sentence(different)}")
        return
    unequal = found.first_unequal
    if unequal is None:
        say("All bits are equal.")
        return
    say(
        f"Nothing differs by more than precisions explain; the first with other bits is {unequal.kind} "
        f"{unequal.name}."
    )


def _sentence(place: PlaceDifference) -> str:
    if place.problem:
        return f"{place.kind} {place.name}: {place.problem}."
    where = place.farthest
    if where is None:
        return f"{place.kind} {place.name}: its values have other shapes."
    ids = f", ids {', '.join(map(str, place.ids))}" if place.ids else ""
    return (
        f"{place.kind} {place.name}, farthest in sample {where.sample}, column {where.column}: "
        f"{where.first:.7g} and {where.second:.7g}{ids}."
    )


def _share(number: float | None, equal: bool) -> str:
    if number is None:
        return ""
    return "equal bits" if equal else f"{number:.2g}"
