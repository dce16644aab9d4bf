"""From a session to a checkpoint and back, whatever the number of processes."""

from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from addnorm.train.checkpoint import Checkpoint, Tensors
from addnorm.train.distributed import full_tensor
from addnorm.train.session import Session
from addnorm.train.train_state import TrainState

GATHER_OPTIONS = StateDictOptions(
    full_state_dict=True, cpu_offload=True
)  # to the first process only
FULL_STATE_OPTIONS = StateDictOptions(full_state_dict=True)
KEY_SEPARATOR = "|"  # between the name of a weight and that of what the optimizer remembers of it


def capture_state(session: Session, progress: TrainState) -> Checkpoint:
    """Everything of this moment; shards are gathered, so all processes must call it."""
    optimizer: Tensors = {}
    if session.optimizer.has_state:
        remembered = get_optimizer_state_dict(
            session.model, session.optimizer.optimizers, options=GATHER_OPTIONS
        )
        optimizer = {
            f"{weight}{KEY_SEPARATOR}{name}": value
            for weight, values in _items(remembered.get("state", {}))
            for name, value in values.items()
        }
    model: dict[str, Any] = get_model_state_dict(session.model, options=GATHER_OPTIONS)
    tensors: dict[str, Tensors] = {"model": model, "optimizer": optimizer}
    if session.ema is not None:
        tensors["average"] = {name: full_tensor(a) for name, a in session.ema.values.items()}
    state = {
        "progress": progress.to_dict(),
        "seed": session.recipe.seed,
        "tokenizer": session.tokenizer.digest,
        "corpus": session.corpus.digest,
    }
    return Checkpoint(progress.step, tensors, state)


def restore_state(session: Session, checkpoint: Checkpoint) -> TrainState:
    """Put weights, optimizer and average back; the progress of that moment is returned."""
    set_model_state_dict(
        session.model, dict(checkpoint.tensors["model"]), options=FULL_STATE_OPTIONS
    )
    state: dict[str, Any] = {}
    for key, value in checkpoint.tensors["optimizer"].items():
        weight, _, name = key.rpartition(KEY_SEPARATOR)
        state.setdefault(weight, {})[name] = value
    if state:
        remembered = get_optimizer_state_dict(
            session.model, session.optimizer.optimizers, options=FULL_STATE_OPTIONS
        )
        set_optimizer_state_dict(
            session.model,
            session.optimizer.optimizers,
            optim_state_dict=remembered | {"state": state},
            options=FULL_STATE_OPTIONS,
        )
    else:
        session.optimizer.clear_state()
    if session.ema is not None:
        session.ema.load(checkpoint.tensors["average"])
    return TrainState.from_dict(checkpoint.state["progress"])


def _items(state: Any) -> list[tuple[str, dict[str, Tensor]]]:
    return [(str(weight), dict(values)) for weight, values in state.items()]
