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
from addnorm.train.distributed import whole
from addnorm.train.session import Session
from addnorm.train.train_state import Progress

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)  # to the first process only
WHOLE = StateDictOptions(full_state_dict=True)
JOINT = "|"  # between the name of a weight and that of what the optimizer remembers of it


def take(session: Session, progress: Progress) -> Checkpoint:
    """Everything of this moment; shards are gathered, so all processes must call it."""
    optimizer: Tensors = {}
    if session.optimizer.began:
        remembered = get_optimizer_state_dict(
            session.model, session.optimizer.parts, options=GATHER
        )
        optimizer = {
            f"{weight}{JOINT}{name}": value
            for weight, values in _items(remembered.get("state", {}))
            for name, value in values.items()
        }
    model: dict[str, Any] = get_model_state_dict(session.model, options=GATHER)
    tensors: dict[str, Tensors] = {"model": model, "optimizer": optimizer}
    if session.average is not None:
        tensors["average"] = {name: whole(a) for name, a in session.average.values.items()}
    state = {
        "progress": progress.to_dict(),
        "seed": session.recipe.seed,
        "tokenizer": session.tokenizer.digest,
        "corpus": session.corpus.digest,
    }
    return Checkpoint(progress.step, tensors, state)


def restore(session: Session, checkpoint: Checkpoint) -> Progress:
    """Put weights, optimizer and average back; the progress of that moment is returned."""
    set_model_state_dict(session.model, dict(checkpoint.tensors["model"]), options=WHOLE)
    state: dict[str, Any] = {}
    for key, value in checkpoint.tensors["optimizer"].items():
        weight, _, name = key.rpartition(JOINT)
        state.setdefault(weight, {})[name] = value
    if state:
        remembered = get_optimizer_state_dict(session.model, session.optimizer.parts, options=WHOLE)
        set_optimizer_state_dict(
            session.model,
            session.optimizer.parts,
            optim_state_dict=remembered | {"state": state},
            options=WHOLE,
        )
    else:
        session.optimizer.forget()
    if session.average is not None:
        session.average.load(checkpoint.tensors["average"])
    return Progress.from_dict(checkpoint.state["progress"])


def _items(state: Any) -> list[tuple[str, dict[str, Tensor]]]:
    return [(str(weight), dict(values)) for weight, values in state.items()]
