"""The table of what a plan costs."""

from layertracer.model_folder import ParameterCounts
from layertracer.plan import FreezePlan, Strategy
from layertracer.plan_table import (
    BYTES_FROZEN,
    BYTES_TRAINED,
    plan_rows,
    print_table,
)

COUNTS = ParameterCounts(layers=(100, 100, 100), embedding=50, final_norm=5, output_layer=50)


def arm(strategy: Strategy) -> FreezePlan:
    return FreezePlan.from_strategy(strategy, num_layers=3, tied_embeddings=False, boundary=1)


def test_every_parameter_is_in_one_row():
    assert sum(row.parameters for row in plan_rows(arm(Strategy.FULL), COUNTS)) == COUNTS.total


def test_bytes_follow_what_trains():
    rows = {row.part: row for row in plan_rows(arm(Strategy.TRAIN_SHALLOW), COUNTS)}
    assert rows["layer 0"].training_bytes == 100 * BYTES_TRAINED
    assert rows["layer 1"].training_bytes == 100 * BYTES_FROZEN
    assert rows["embedding"].trains and not rows["output layer"].trains


def test_equal_neighbours_share_a_line(capsys):
    print_table(arm(Strategy.TRAIN_DEEP), COUNTS)
    printed = capsys.readouterr().out
    assert "layer 1 to 2" in printed and "layer 0 " in printed
    assert "trains 255 of 405 parameters" in " ".join(printed.split())
