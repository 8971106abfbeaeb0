"""FreezePlan: what trains, from which step."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layertracer.errors import UserError
from layertracer.plan import FreezePlan, Strategy, parse_plan


def plan(**changes) -> dict:
    content = {
        "num_layers": 4,
        "tied_embeddings": False,
        "phases": [{"at_step": 0, "layers": [0, 1]}],
    }
    return content | changes


@pytest.mark.parametrize(
    ("strategy", "layers", "embedding", "head"),
    [
        (Strategy.FULL, (0, 1, 2, 3), True, True),
        (Strategy.TRAIN_SHALLOW, (0, 1), True, False),
        (Strategy.TRAIN_DEEP, (2, 3), False, True),
    ],
)
def test_an_arm_trains_its_part_and_what_touches_it(strategy, layers, embedding, head):
    made = FreezePlan.from_strategy(strategy, num_layers=4, tied_embeddings=False, boundary=2)
    phase = made.phases[0]
    assert phase.layers == layers
    assert phase.embedding == embedding
    assert phase.output_layer == phase.final_norm == head


@pytest.mark.parametrize("strategy", [Strategy.TRAIN_SHALLOW, Strategy.TRAIN_DEEP])
def test_a_tied_head_goes_with_the_embedding(strategy):
    made = FreezePlan.from_strategy(strategy, num_layers=4, tied_embeddings=True, boundary=2)
    assert made.phases[0].output_layer == made.phases[0].embedding


def test_a_plan_survives_its_file(tmp_path):
    made = FreezePlan.from_strategy(
        Strategy.TRAIN_SHALLOW, num_layers=30, tied_embeddings=True, boundary=15
    )
    made.save(tmp_path / "plan.json")
    assert FreezePlan.load(tmp_path / "plan.json") == made


@given(st.lists(st.integers(0, 9), unique=True, min_size=1))
def test_the_order_in_which_layers_are_written_does_not_matter(layers):
    def digest(order: list[int]) -> str:
        return parse_plan(plan(num_layers=10, phases=[{"layers": order}]), source="x").digest()

    assert digest(layers) == digest(layers[::-1])


def test_the_digest_tells_plans_apart_by_what_trains_only():
    one = parse_plan(plan(), source="x")
    assert one.digest() == parse_plan(plan(model="elsewhere"), source="x").digest()
    assert one.digest() != parse_plan(plan(phases=[{"layers": [0]}]), source="x").digest()


def test_a_phase_is_in_force_until_the_next_begins():
    made = parse_plan(
        plan(phases=[{"layers": [0, 1, 2, 3]}, {"at_step": 10, "layers": [0]}]), source="x"
    )
    assert made.phase_at(9).layers == (0, 1, 2, 3)
    assert made.phase_at(10).layers == (0,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (plan(phases=[{"layers": [4]}]), r"layers \[4\] do not exist: the model has 4 layers"),
        (plan(phases=[{"layers": []}]), "nothing trains from step 0 on"),
        (plan(phases=[{"layers": [1, 1]}]), "listed twice"),
        (plan(phases=[{"layers": [-1]}]), "greater than or equal to 0"),
        (plan(phases=[]), "at least 1 item"),
        (plan(phases=[{"at_step": 5, "layers": [0]}]), "first phase must have at_step 0"),
        (plan(phases=[{"layers": [0]}, {"layers": [1]}]), "at_step must rise"),
        (
            plan(tied_embeddings=True, phases=[{"layers": [0], "embedding": True}]),
            'write "output_layer": true',
        ),
        (plan(layer=3), "Extra inputs"),
        ("text", "valid dictionary"),
    ],
)
def test_a_wrong_plan_says_what_to_write_instead(content, message, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        FreezePlan.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_or_damaged_plan_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such plan file"):
        FreezePlan.load(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        FreezePlan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("boundary", [None, 0, 4, -1])
def test_a_split_needs_a_boundary_inside_the_model(boundary):
    with pytest.raises(UserError, match="from 1 to 3"):
        FreezePlan.from_strategy(
            Strategy.TRAIN_SHALLOW, num_layers=4, tied_embeddings=False, boundary=boundary
        )


def test_a_plan_for_another_model_is_refused():
    made = parse_plan(plan(), source="x")
    made.check_model(num_layers=4, tied_embeddings=False, source="plan.json")
    with pytest.raises(UserError, match="for 4 layers, the model has 5"):
        made.check_model(num_layers=5, tied_embeddings=False, source="plan.json")
    with pytest.raises(UserError, match="untied embeddings, the model's are tied"):
        made.check_model(num_layers=4, tied_embeddings=True, source="plan.json")


def test_the_published_schema_is_the_one_in_force():
    published = Path(__file__).parent.parent / "docs" / "plan.schema.json"
    assert json.loads(published.read_text()) == FreezePlan.model_json_schema()
