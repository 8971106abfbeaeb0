"""The command line of the training entry: the shape is the checkpoint's."""

import argparse

import pytest

from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.errors import UserError
from megatron_patches.arguments import (
    CHECKPOINT_SCHEDULE,
    add_arguments,
    complete,
    given,
    refuse_contradictions,
    resumed,
)

SHAPE = MegatronShape(
    family="llama",
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=64,
    ffn_hidden_size=96,
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=16,
    vocab_size=126,
    max_position_embeddings=128,
    norm_epsilon=1e-5,
    rotary_base=500000.0,
    tied_embeddings=True,
    dtype="float32",
    source_fingerprint="0" * 64,
)


def checkpoint(folder, shape=SHAPE):
    """What tells a checkpoint folder: the tracker, and the shape beside it."""
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    shape.save(folder)
    return str(folder)


def test_the_shape_becomes_flags(tmp_path):
    line = complete(["--load", checkpoint(tmp_path / "model")])
    for flag, value in SHAPE.flags().items():
        assert flag in line
        if value is not None:
            assert given(line, flag) == value
    assert given(line, "--tokenizer-model") == str(tmp_path / "model" / "source")


@pytest.mark.parametrize(("ranks", "rows"), [("1", "126"), ("2", "126"), ("4", "128")])
def test_the_vocabulary_is_the_models_whatever_tokenizer_and_layout(tmp_path, ranks, rows):
    load = checkpoint(tmp_path / "model")
    line = complete(["--load", load, "--tensor-model-parallel-size", ranks])
    assert given(line, "--padded-vocab-size") == rows


def test_the_users_flags_come_last_and_win(tmp_path):
    load = checkpoint(tmp_path / "model")
    assert given(complete(["--load", load, "--log-interval", "5"]), "--log-interval") == "5"


@pytest.mark.parametrize(("flag", "value"), [("--hidden-size", "128"), ("--norm-epsilon", "1e-6")])
def test_a_flag_that_contradicts_the_shape_is_refused(flag, value):
    with pytest.raises(UserError, match=f"{flag} {value}: the checkpoint's model has"):
        refuse_contradictions(SHAPE, [flag, value])


def test_the_same_number_in_another_spelling_is_no_contradiction():
    refuse_contradictions(SHAPE, ["--norm-epsilon", "0.00001", "--rotary-base", "500000.0"])


def test_a_stopped_run_goes_on_from_its_own_checkpoint(tmp_path):
    load, save = checkpoint(tmp_path / "model"), checkpoint(tmp_path / "run")
    assert given(resumed(["--load", load, "--save", save]), "--load") == save
    fresh = ["--load", load, "--save", str(tmp_path / "new")]
    assert resumed(fresh) == fresh


def test_a_run_of_another_model_is_not_gone_on_with(tmp_path):
    other = SHAPE.model_copy(update={"source_fingerprint": "1" * 64})
    load, save = checkpoint(tmp_path / "model"), checkpoint(tmp_path / "run", other)
    with pytest.raises(UserError, match="holds a run of another model"):
        resumed(["--load", load, "--save", save])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no Megatron checkpoint there"):
        complete(["--load", str(tmp_path)])
    with pytest.raises(UserError, match=r"corpus: no .*corpus\.idx"):
        complete(["--data-path", str(tmp_path / "corpus")])


def test_our_flags_are_added_to_megatrons():
    parsed = add_arguments(argparse.ArgumentParser()).parse_args(["--freeze-plan", "plan.json"])
    assert parsed.freeze_plan.name == "plan.json" and parsed.layer_stats_interval == 0


def test_a_resumed_run_follows_the_schedule_of_its_command_line_unless_told_otherwise():
    ours = "--override-opt_param-scheduler"
    assert ours in complete(["--train-iters", "8"], on_cpu=True)
    for spelling in CHECKPOINT_SCHEDULE:
        assert ours not in complete([spelling], on_cpu=True)
