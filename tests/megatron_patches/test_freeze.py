from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from layertracer.errors import UserError
from layertracer.plan import FreezePlan, Phase
from megatron_patches.freeze import first_step, load_plan
from megatron_patches.parts import Part, parts_of


def settings(plan: Path | None, **changed: Any) -> Namespace:
    """What Megatron's parser makes of a run that can train under a plan."""
    usual = {
        "freeze_plan": plan,
        "num_layers": 4,
        "untie_embeddings_and_output_weights": False,
        "use_distributed_optimizer": True,
        "dist_ckpt_optim_fully_reshardable": True,
        "freeze_all_layers": False,
        "use_megatron_fsdp": False,
        "use_torch_fsdp2": False,
        "cuda_graph_impl": "none",
        "optimizer": "adam",
    }
    return Namespace(**usual | changed)


def saved(folder: Path, *phases: Phase, tied: bool = True) -> Path:
    FreezePlan(num_layers=4, tied_embeddings=tied, phases=phases).save(folder / "plan.json")
    return folder / "plan.json"


def test_without_a_plan_nothing_is_checked() -> None:
    assert load_plan(settings(None, use_distributed_optimizer=False)) is None


def test_a_plan_that_fits_is_returned(tmp_path: Path) -> None:
    plan = load_plan(settings(saved(tmp_path, Phase(layers=(1,)))))
    assert plan is not None
    assert plan.phases == (Phase(layers=(1,)),)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_layers": 6}, "for 4 layers, the model has 6"),
        ({"untie_embeddings_and_output_weights": True}, "for tied embeddings"),
        ({"use_distributed_optimizer": False}, "needs --use-distributed-optimizer"),
        ({"dist_ckpt_optim_fully_reshardable": False}, "other format"),
        ({"freeze_all_layers": True}, "--freeze-all-layers: write a plan"),
        ({"use_megatron_fsdp": True}, "--use-megatron-fsdp"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    plan = saved(tmp_path, Phase(layers=(1,)))
    with pytest.raises(UserError, match=said) as refusal:
        load_plan(settings(plan, **changed))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"cuda_graph_impl": "local"}, "--cuda-graph-impl local"),
        ({"optimizer": "muon"}, "--optimizer muon"),
        ({"num_distributed_optimizer_instances": 2}, "--num-distributed-optimizer-instances 2"),
    ],
)
def test_only_plans_that_change_refuse_what_cannot_be_built_again(
    tmp_path: Path, changed: dict[str, Any], flag: str
) -> None:
    constant = saved(tmp_path, Phase(layers=(1,)))
    assert load_plan(settings(constant, **changed)) is not None
    changing = saved(tmp_path, Phase(layers=(1, 2)), Phase(at_step=9, layers=(1,)))
    with pytest.raises(UserError, match=f"changes at step 9.*{flag}"):
        load_plan(settings(changing, **changed))


@pytest.mark.parametrize(("name", "step"), [("release", 0), ("iter_0000120", 120)])
def test_the_first_step_is_the_checkpoints(tmp_path: Path, name: str, step: int) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / ".metadata").touch()
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text(name if name == "release" else str(step))
    run = Namespace(load=str(tmp_path), finetune=False, ckpt_step=None)
    assert first_step(run) == step
    assert first_step(Namespace(load=str(tmp_path), finetune=True, ckpt_step=None)) == 0
    assert first_step(Namespace(load=None, finetune=False, ckpt_step=None)) == 0


def test_parts_have_names() -> None:
    phase = Phase(layers=(0, 3), embedding=True, output_layer=True)
    assert parts_of(phase) == {"layer.0", "layer.3", "embedding", "output_layer"}
    assert Part("final_norm").name == "final_norm"
