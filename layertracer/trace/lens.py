"""Reading the residual stream of any causal LM, and decoding it by the model's own tail.

No family is known by name. States are read by hooks on the decoder layers; they are decoded by
*replay*: for one call every decoder layer is bypassed, the last one returns the states to decode,
and the model's own code does the rest (final norm, projections, head, scale, soft-cap).
``TracedModel`` checks at load that this reproduces the model's own logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class LensError(Exception):
    """The model's structure does not allow reading it through its own head; says why."""


class _LastLayerDone(Exception):
    """Ends a forward pass after the last decoder layer: the head at every position is waste."""


def find_layers(model: nn.Module) -> nn.ModuleList:
    """Return the decoder blocks: the shallowest ModuleList as long as the config says.

    Raises:
        LensError: there is none.
    """
    config = model.config.get_text_config(decoder=True)
    wanted = config.num_hidden_layers
    lists = [
        (name.count("."), name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) in (wanted, getattr(config, "num_layers", wanted))
    ]
    if not lists:
        raise LensError(f"no list of {wanted} decoder layers was found")
    return min(lists, key=lambda entry: entry[0])[2]


def hidden_of(output: Any) -> Tensor:
    """Return the hidden states from what a decoder layer returned: a tensor, or a tuple's first."""
    hidden = output if isinstance(output, Tensor) else output[0]
    if not isinstance(hidden, Tensor):
        raise LensError(f"a decoder layer returns {type(hidden).__name__} instead of a tensor")
    return hidden


class Lens:
    """The residual stream of ``model`` after its embedding and after each block, decodable.

    Args:
        model: a causal LM in eval mode, as transformers builds it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers = find_layers(model)
        self.hidden_size = 0  # known once probed
        self._rest: list[tuple[Any, ...] | None] = []

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.layers)

    @torch.inference_mode()
    def probe(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Run the whole model once, and learn how its layers return what they return.

        Returns:
            the last block's states ``[batch, sequence, hidden]`` and the model's own logits
            ``[batch, sequence, vocabulary]``.

        Raises:
            LensError: a layer is skipped or run more than once, or returns something unusable.
        """
        calls: list[int] = []
        outputs: dict[int, Any] = {}

        def note(index: int):
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                calls.append(index)
                outputs[index] = output

            return hook

        with _hooks(layer.register_forward_hook(note(i)) for i, layer in enumerate(self.layers)):
            logits = self.model(**inputs, use_cache=False).logits
        if calls != list(range(self.num_layers)):
            raise LensError("its layers are not run once each, in order")
        self._rest = [
            None if isinstance(outputs[i], Tensor) else tuple(outputs[i][1:])
            for i in range(self.num_layers)
        ]
        last = hidden_of(outputs[self.num_layers - 1])
        self.hidden_size = last.shape[-1]
        return last, logits

    @torch.inference_mode()
    def read(
        self, inputs: dict[str, Tensor], positions: Tensor, embedding_noise: Tensor | None = None
    ) -> Tensor:
        """Return the states at one position of each row: ``[layers + 1, batch, hidden]``.

        Index 0 is the input of the first block, index ``l + 1`` the output of block ``l``.

        Args:
            inputs: ``input_ids`` and ``attention_mask``, both ``[batch, sequence]``.
            positions: ``[batch]``, the position to read in each row.
            embedding_noise: ``[batch, sequence, 1 or hidden]``, in units of the root mean square
                of each token's own embedding, added to the embedding's output.
        """
        rows = torch.arange(positions.shape[0], device=positions.device)
        states: list[Tensor] = []

        def before_first(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            states.append(hidden[rows, positions])

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            states.append(hidden_of(output)[rows, positions])
            if len(states) == self.num_layers + 1:
                raise _LastLayerDone

        with ExitStack() as stack:
            first = self.layers[0].register_forward_pre_hook(before_first, with_kwargs=True)
            stack.enter_context(
                _hooks([first, *(layer.register_forward_hook(after) for layer in self.layers)])
            )
            if embedding_noise is not None:
                stack.enter_context(_noisy_embedding(self.model, embedding_noise))
            stack.enter_context(_until_last_layer())
            self.model(**inputs, use_cache=False)
        return torch.stack(states)

    @torch.inference_mode()
    def decode(self, states: Tensor, dummy_token: int = 0) -> Tensor:
        """Return the logits ``[n, vocabulary]`` (float32) of states ``[n, hidden]``.

        ``dummy_token`` fills the input that the bypassed layers never look at.
        """
        ids = torch.full((states.shape[0], 1), dummy_token, device=states.device)
        with _bypassed(self.layers, self._rest, states.unsqueeze(1)):
            output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        return output.logits[:, -1].float()


@contextmanager
def _hooks(handles: Any) -> Iterator[None]:
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _until_last_layer() -> Iterator[None]:
    try:
        yield
    except _LastLayerDone:
        return
    raise LensError("the last decoder layer did not run")


def _noisy_embedding(model: nn.Module, noise: Tensor) -> Any:
    def add(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        scale = output.float().square().mean(-1, keepdim=True).sqrt()
        return output + (noise * scale).to(output.dtype)

    return _hooks([model.get_input_embeddings().register_forward_hook(add)])


@contextmanager
def _bypassed(
    layers: nn.ModuleList, rest: list[tuple[Any, ...] | None], states: Tensor
) -> Iterator[None]:
    """Make each layer return its input, and the last one ``states``, in the shape it returns."""

    def make(index: int):
        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            if index == len(layers) - 1:
                hidden = states
            return hidden if rest[index] is None else (hidden, *rest[index])

        return forward

    own = [layer.__dict__.get("forward") for layer in layers]
    for index, layer in enumerate(layers):
        layer.forward = make(index)
    try:
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
