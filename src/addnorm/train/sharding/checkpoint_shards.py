"""Sharded checkpoints: each process writes the tensors and shards that it holds.

    checkpoints/
        step-200/
            model/shard-00001-model-00001-of-00001.safetensors       by the first process
            model/shard-00002-model-00001-of-00001.safetensors       by the second
            optimizer/ ...
            average/ ...                                             if the recipe has `ema`
            state.json

`torch.distributed.checkpoint` plans who writes and who reads what: a replicated tensor is written
once, and a process reads only the parts of the files that overlap with its own shards. The number
of processes, and how they share the weights, may change between writing and reading. Its
safetensors format is used, because the default one is read with pickle.
"""

import errno
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from addnorm.core.files import file_checksum, fsync_path
from addnorm.train.distributed import World

Tensors = Mapping[str, Tensor]


def write_shards(folder: Path, tensors: Mapping[str, Tensors], world: World) -> dict[str, str]:
    """Write tensors to sub-folders of `folder`. All processes must call this.

    Args:
        folder: a folder that all processes see; an older one is replaced
        tensors: tensors of each sub-folder, which may be sharded
        world: the processes of the run

    Returns:
        Checksums of all files in the main process, by path in `folder`; empty in the others.

    Raises:
        OSError: a process cannot write
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    def make_folders() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name in tensors:
            (folder / name).mkdir(parents=True)

    world.run_on_main(make_folders)
    for name, group in tensors.items():
        writer = HuggingFaceStorageWriter(str(folder / name), save_distributed=True)
        try:
            with _single_process_allowed():
                save(dict(group), storage_writer=writer, no_dist=world.size == 1)
        except CheckpointException as error:  # has the errors of all processes
            raise _first_os_error(error) from None
    own = {
        str(path.relative_to(folder)): file_checksum(path)
        for name in tensors
        for path in (folder / name).glob(f"shard-{world.rank + 1:05d}-*")
    }
    if world.is_main:
        for name in tensors:
            fsync_path(folder / name)
    if world.size == 1:
        return own
    gathered: list[Any] | None = [None] * world.size if world.is_main else None
    dist.gather_object(own, gathered)
    return {name: checksum for part in gathered or () for name, checksum in part.items()}


def read_shards(folder: Path, tensors: Tensors, world: World) -> None:
    """Read tensors of one sub-folder into existing ones, sharded or not, in place.

    All processes must call this.

    Raises:
        KeyError: the folder lacks one of the tensors
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    missing = [name for name in tensors if name not in stored]
    if missing:
        raise KeyError(missing[0])
    with _single_process_allowed():
        load(dict(tensors), storage_reader=reader, no_dist=world.size == 1)


def read_full_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of one sub-folder, each assembled from its shards, in this process."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    stored: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    tensors = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype) for name, meta in stored.items()
    }
    with _single_process_allowed():
        load(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _single_process_allowed() -> Iterator[None]:
    """Silence the warning that a checkpoint is read or written by one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _first_os_error(error: Any) -> Exception:
    """Return the first `OSError` of a failed save, or another error as one."""
    problems = [failure[0] for failure in error.failures.values()]
    known = [problem for problem in problems if isinstance(problem, OSError)]
    return known[0] if known else OSError(errno.EIO, str(problems[0] if problems else error))
