"""Choosing the boundary and the arm from a trace, under limits of memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import UserError
from layertracer.estimate.settings import Layout, ModelShape, model_shape
from layertracer.estimate.time import head_cost, layer_costs
from layertracer.model_folder import ModelFolder
from layertracer.plan import FreezePlan, Phase, Strategy
from layertracer.trace.files import BoundaryResult, TraceFile

AUTO = "auto"
BYTES_OPTIMIZER = 12  # bf16 training: fp32 main copy and two moments


@dataclass(frozen=True)
class Switches:
    """Whether the parts beside the layers train; ``None`` goes with the neighbouring layer."""

    embedding: bool | None = None
    final_norm: bool | None = None
    output_layer: bool | None = None


@dataclass(frozen=True)
class Limits:
    """What a plan may cost: optimizer state in GiB, unsharded, and step time over full training."""

    max_optimizer_gib: float | None = None
    max_step_time_ratio: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_optimizer_gib is not None or self.max_step_time_ratio is not None


@dataclass(frozen=True)
class Choice:
    """A chosen arm and boundary, and the sentence that says why."""

    strategy: Strategy
    boundary: int | None
    reason: str


@dataclass(frozen=True)
class Decision:
    """A plan, the model it is for, and the sentences that say why it is this one."""

    plan: FreezePlan
    folder: ModelFolder
    reasons: list[str]


def decide(
    source: Path,
    *,
    strategy: str,
    boundary: str,
    model: Path | None,
    switches: Switches,
    limits: Limits,
) -> Decision:
    """Return the plan that the options ask for.

    Args:
        source: a trace folder, or a model folder.
        strategy: an arm's name, or ``auto``.
        boundary: ``"14"``, ``"0.5"`` or ``auto``.

    Raises:
        UserError: an option needs a trace and there is none, or can't be met.
    """
    trace = source_trace(source)
    folder = ModelFolder(model or (source if trace is None else trace.model.path))
    if trace is None and AUTO in (strategy, boundary):
        raise UserError(f"{source} holds no trace, which auto needs: run `layertracer trace` first")
    if limits.any and boundary != AUTO:
        raise UserError("--max-optimizer-gib and --max-step-time-ratio go with --boundary auto")
    reasons = []
    if strategy == AUTO:
        choice = choose_strategy(trace)
        strategy = choice.strategy.value
        reasons.append(f"{strategy}: {choice.reason}")
    arm = Strategy(strategy)
    if boundary == AUTO:
        choice = choose_boundary(trace, folder, arm, switches, limits)
        chosen = choice.boundary
        reasons.append(f"boundary {chosen}: {choice.reason}")
    else:
        chosen = parse_boundary(boundary, folder.num_layers)
    return Decision(make_plan(folder, arm, chosen, switches), folder, reasons)


def choose_strategy(trace: TraceFile) -> Choice:
    """Return the arm that the trace speaks for.

    Train-shallow when the best boundary score S(b) is above 0 with its 95% interval, train-deep
    when no score is but the lowest is below 0 with its interval, else full training.
    """
    best = max(trace.boundaries, key=_mean, default=None)
    if best is None:
        return Choice(Strategy.FULL, None, "the model has one layer")
    if best.score.low > 0:
        return Choice(Strategy.TRAIN_SHALLOW, best.boundary, f"{_said(best)}: shallow is sensitive")
    lowest = min(trace.boundaries, key=_mean)
    if lowest.score.high < 0:
        return Choice(Strategy.TRAIN_DEEP, lowest.boundary, f"{_said(lowest)}: deep is sensitive")
    return Choice(Strategy.FULL, None, f"{_said(best)}: no part is told apart as the sensitive one")


def choose_boundary(
    trace: TraceFile, folder: ModelFolder, strategy: Strategy, switches: Switches, limits: Limits
) -> Choice:
    """Return the boundary with the highest S(b) (lowest for train-deep) within ``limits``.

    Raises:
        UserError: no boundary keeps within the limits; the message gives the nearest one's cost.
    """
    if strategy is Strategy.FULL:
        return Choice(strategy, None, "full training has no boundary")
    sign = -1 if strategy is Strategy.TRAIN_DEEP else 1
    ranked = sorted(trace.boundaries, key=lambda entry: (-sign * _mean(entry), entry.boundary))
    if not limits.any:
        return Choice(strategy, ranked[0].boundary, _said(ranked[0]))
    shape = model_shape(folder)
    for entry in ranked:
        plan = make_plan(folder, strategy, entry.boundary, switches)
        if all(cost <= limit for cost, limit, _ in _costs(plan, shape, limits)):
            return Choice(strategy, entry.boundary, f"{_said(entry)}, the best within the limits")
    smallest = 1 if strategy is Strategy.TRAIN_SHALLOW else folder.num_layers - 1
    plan = make_plan(folder, strategy, smallest, switches)
    cost, limit, flag = next(c for c in _costs(plan, shape, limits) if c[0] > c[1])
    raise UserError(
        f"{flag} {limit:g}: no boundary keeps within it; training a single layer takes {cost:.3g}"
        " already (embedding and head are the other part: see --no-embedding)"
    )


def make_plan(
    folder: ModelFolder, strategy: Strategy, boundary: int | None, switches: Switches
) -> FreezePlan:
    """Return the plan of ``strategy`` for the model in ``folder``."""
    return FreezePlan.from_strategy(
        strategy,
        num_layers=folder.num_layers,
        tied_embeddings=folder.tied_embeddings,
        boundary=boundary,
        embedding=switches.embedding,
        final_norm=switches.final_norm,
        output_layer=switches.output_layer,
        model=str(folder.path),
    )


def parse_boundary(text: str, num_layers: int) -> int:
    """Return the number of shallow layers from ``"14"`` or ``"0.5"`` (a share, rounded).

    Raises:
        UserError: neither a whole number nor a share between 0 and 1.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(
            f"--boundary {text}: give a number of layers (14), a share (0.5) or, for a trace, auto"
        )
    return round(share * num_layers)


def source_trace(source: Path) -> TraceFile | None:
    """Return the trace in ``source``, or None when it is a model folder."""
    return TraceFile.load(source) if (source / "trace.json").is_file() else None


def _costs(
    plan: FreezePlan, shape: ModelShape, limits: Limits
) -> Iterator[tuple[float, float, str]]:
    phase = plan.phases[0]
    if limits.max_optimizer_gib is not None:
        gib = trained_parameters(phase, shape) * BYTES_OPTIMIZER / 2**30
        yield gib, limits.max_optimizer_gib, "--max-optimizer-gib"
    if limits.max_step_time_ratio is not None:
        yield step_time_ratio(phase, shape), limits.max_step_time_ratio, "--max-step-time-ratio"


def trained_parameters(phase: Phase, shape: ModelShape) -> int:
    """Return how many parameters ``phase`` trains."""
    counts = shape.counts
    return (
        sum(counts.layers[layer] for layer in phase.layers)
        + counts.embedding * phase.embedding
        + counts.final_norm * phase.final_norm
        + counts.output_layer * phase.output_layer
    )


def step_time_ratio(phase: Phase, shape: ModelShape) -> float:
    """Return step time over full training on one pipeline stage, at 4,096 tokens."""
    layers = tuple(range(shape.num_layers))
    full = Phase(layers=layers, embedding=True, final_norm=True, output_layer=True)

    def total(of: Phase) -> float:
        return sum(layer_costs(shape, of, Layout())) + head_cost(shape, of)

    return total(phase) / total(full)


def _mean(entry: BoundaryResult) -> float:
    return entry.score.mean


def _said(entry: BoundaryResult) -> str:
    score = entry.score
    return f"S({entry.boundary}) = {score.mean:.4f} [{score.low:.4f}, {score.high:.4f}]"
