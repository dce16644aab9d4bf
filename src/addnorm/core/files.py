"""Atomic file writes, and JSON and YAML files with checksums.

A file written here is either complete or absent: it is written under a temporary name, flushed to
disk, and renamed. A reader never sees a part of it, even after a power failure.

Files that we read back carry a SHA-256 checksum, so that later damage is noticed:

    JSON    the key `checksum` covers all other keys, the key `files` has the checksum of files
            beside it, such as weights
    YAML    the first line is a comment with the checksum of the lines below it

A JSON or YAML file without a checksum was written by hand and is not verified. Deleting the
checksum therefore accepts an edited file.
"""

import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.parsing import parse_json, parse_yaml

CHECKSUM, FILES, FORMAT = "checksum", "files", "file_format"
"""Keys that `write_json` adds."""
CURRENT_FORMAT = 1
"""Raised when older versions could misread what this one writes."""
YAML_CHECKSUM = "# sha256 of the lines below, delete this line after an edit: "
FOLDER_SUFFIX = ".d"
HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""Part of temporary names: a folder may be shared with machines that have other process ids."""
TEMPORARY_NAME = re.compile(
    r"\.(?P<name>.+\.(?:json|jsonl|yaml|html|safetensors))\.(?P<owner>[0-9a-f]{8}-\d+)(?:\.d)?"
)
"""Names of temporary files of `atomic_write`, and of folders of `temporary_folder`."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block succeeds.

    If the block raises, the temporary file is deleted and `path` keeps its old content. Missing
    parent folders are created. A symbolic link stays one: the file that it points to is replaced.
    Temporary files that killed processes left for the same path are deleted.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("42")
    >>> target.read_text()
    '42'
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_siblings(path)
    temporary = path.with_name(f".{path.name}.{owner_id()}")
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
        fsync_path(path.parent)
    except OSError as problem:
        if problem.errno is not None and problem.filename in (None, str(temporary)):
            problem.filename = str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path` for a writer with temporary files of its own.

    The folder is deleted at the end; the next `atomic_write` of the same file deletes that of a
    killed process.

    Args:
        path: the file to write, or the temporary path that `atomic_write` yields for it
    """
    match = TEMPORARY_NAME.fullmatch(path.name)
    name = match["name"] if match else path.name
    folder = path.with_name(f".{name}.{owner_id()}{FOLDER_SUFFIX}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, which becomes `path` at the end.

    After an error or an interrupt nothing is left. Folders of killed processes are deleted, too.

    Args:
        path: a new or empty folder
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_siblings(path)
    with temporary_folder(path) as folder:
        folder.chmod(0o777 & ~_umask())  # it is private until now
        yield folder
        for file in folder.iterdir():
            file.chmod((0o777 if file.is_dir() else 0o666) & ~_umask())  # some are written private
        folder.replace(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def remove_stale_siblings(path: Path) -> None:
    """Delete the temporary files and folders that killed processes left beside a path."""
    for stale in path.parent.glob(f".{_escape_glob(path.name)}.*"):
        owner = stale.name.removeprefix(f".{path.name}.").removesuffix(FOLDER_SUFFIX)
        _remove_if_stale(stale, owner)


def remove_stale_files(folder: Path) -> None:
    """Delete the temporary files that killed processes left in a folder."""
    with suppress(OSError):
        for path in folder.iterdir():
            if match := TEMPORARY_NAME.fullmatch(path.name):
                _remove_if_stale(path, match["owner"])


def owner_id() -> str:
    """Return the part of a temporary name that identifies this process."""
    return f"{HOST}-{os.getpid()}"


def _remove_if_stale(path: Path, owner: str) -> None:
    """Delete a temporary file if the process that wrote it ran on this machine and has ended."""
    host, _, pid = owner.partition("-")
    if host != HOST or not pid.isascii() or not pid.isdigit() or len(pid) > 10:
        return
    try:
        os.kill(int(pid), 0)  # raises if there is no such process; signal 0 is not delivered
    except ProcessLookupError:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except (OSError, OverflowError):
        pass  # a process of another user


def _escape_glob(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def fsync_path(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_checksum(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `size` bytes, with bounded memory."""
    return hash_prefix(path, size).hexdigest()


def hash_prefix(path: Path, size: int | None = None) -> "hashlib._Hash":
    """Return the hash object of a file, or of its first `size` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest


def check_file(path: Path, checksum: str, *, hint: str) -> None:
    """Raise `UserError` unless a file has a checksum.

    Args:
        path: the file
        checksum: the result of `file_checksum` when the file was written
        hint: what to do about a changed file
    """
    try:
        if file_checksum(path) == checksum:
            return
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}); {hint}") from None
    raise UserError(f"{path} has changed since it was written: its checksum differs; {hint}")


def write_json(path: Path, data: Mapping[str, Any], *, files: Mapping[str, str] = {}) -> None:
    """Write an object as indented JSON with its checksum; NaN and infinities become null.

    Args:
        path: the file, replaced atomically
        data: the object
        files: checksums of files beside it, by name; `read_json_and_files` returns them
    """
    with atomic_write(path) as temporary:
        temporary.write_bytes(to_checked_json(replace_nonfinite(data), files))


def to_checked_json(data: Mapping[str, Any], files: Mapping[str, str] = {}) -> bytes:
    """Return an object as indented JSON in UTF-8, with its checksum."""
    # As a reader gets it: keys are strings, and a file has one order of keys.
    content = json.loads(json.dumps({**data, FILES: dict(files)} if files else dict(data)))
    content |= {FORMAT: CURRENT_FORMAT}
    content |= {CHECKSUM: _json_checksum(content)}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")  # lone surrogates become JSON escapes


def read_json(path: Path, *, hint: str = "") -> Any:
    """Return the content of a JSON file without its checksum, or None if there is no such file.

    Args:
        path: the file
        hint: what to do about a damaged file

    Raises:
        UserError: the file does not contain JSON, or its checksum does not match
    """
    return read_json_and_files(path, hint=hint)[0]


def read_json_and_files(
    path: Path,
    *,
    hint: str = "",
    edit_hint: str = "",
    nonfinite: bool = False,
    required: bool = False,
    verify: bool = True,
) -> tuple[Any, dict[str, str]]:
    """Return the content of a JSON file, and the checksums of the files beside it, by name.

    Args:
        path: the file
        hint: what to do about a damaged file
        edit_hint: what else to do about a file that can be read and has changed
        nonfinite: whether NaN and infinities are allowed, which JSON does not have
        required: whether a file without a checksum is damaged
        verify: whether the checksum must match

    Raises:
        UserError: the file does not contain JSON, or its checksum does not match
    """
    hint = hint or "delete it and rerun the command that wrote it"
    data = _read_document(path, "JSON", lambda text: parse_json(text, nonfinite=nonfinite), hint)
    if data is None and path.exists():
        raise UserError(f"{path}: expected data, got null; {hint}")
    files: Any = {}
    # Before the checksum: a newer version may compute it in another way.
    written = data.get(FORMAT, CURRENT_FORMAT) if isinstance(data, dict) else CURRENT_FORMAT
    if written != CURRENT_FORMAT:
        raise UserError(
            f"{path}: expected file format {CURRENT_FORMAT}, got {written!r}; it was written by "
            "another version of addnorm: update this one"
        )
    if isinstance(data, dict) and CHECKSUM in data:
        checksum = data.pop(CHECKSUM)
        if verify and checksum != _json_checksum(data):
            raise _changed_error(path, f"{hint}, {edit_hint}" if edit_hint else hint)
    elif required and data is not None:
        raise UserError(f"{path} has no checksum; {hint}")
    if isinstance(data, dict):
        data.pop(FORMAT, None)
        files = data.pop(FILES, {})
        if not isinstance(files, dict) or any(
            not isinstance(checksum, str) or not _is_below(name) for name, checksum in files.items()
        ):
            raise UserError(f"{path}: {FILES}: expected checksums by file name; {hint}")
    return data, files


def _is_below(name: str) -> bool:
    """Return whether a relative path names a file in a folder or below it.

    >>> _is_below("model.safetensors"), _is_below("model/shard-1"), _is_below("../model")
    (True, True, False)
    """
    path = Path(name)
    return str(path) == name != "." and not path.is_absolute() and ".." not in path.parts


def write_yaml(path: Path, text: str) -> None:
    """Write YAML below a comment with its checksum, atomically."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    with atomic_write(path) as temporary:
        temporary.write_text(f"{YAML_CHECKSUM}{checksum}\n{text}", encoding="utf-8")


def read_yaml(path: Path, *, verify: bool = True) -> Any:
    """Return the content of a YAML file, or None if there is no such file.

    Args:
        path: the file
        verify: whether a changed file is an error, if it has a checksum

    Raises:
        UserError: the file does not contain YAML, or its checksum does not match
    """
    hint = "restore it, or delete its first line to accept the change"

    def parse(text: str) -> Any:
        first, _, rest = text.partition("\n")
        if verify and YAML_CHECKSUM.removeprefix("#") in first:
            checksum = hashlib.sha256(rest.encode()).hexdigest()
            if first != f"{YAML_CHECKSUM}{checksum}":
                raise _changed_error(path, hint)
        return parse_yaml(text)

    return _read_document(path, "YAML", parse, "")


def _read_document(path: Path, kind: str, parse: Callable[[str], Any], hint: str) -> Any:
    """Return the parsed text of a file, None if there is no such file."""
    hint = f"; {hint}" if hint else ""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait forever
            raise UserError(f"{path}: expected a file, got a folder or a device{hint}")
        with path.open(encoding="utf-8", newline="") as file:
            return parse(file.read())
    except FileNotFoundError:
        return None
    except UserError:  # a ValueError, and already a message for the user
        raise
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"{path} cannot be read ({reason}); check its permissions") from None
    except ValueError as problem:
        raise UserError(f"{path} is not {kind} ({problem}){hint}") from None


def _changed_error(path: Path, hint: str) -> UserError:
    return UserError(f"{path} has changed since it was written: its checksum differs; {hint}")


def _json_checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def replace_nonfinite(value: Any) -> Any:
    """Return a copy of nested JSON data with None in place of NaN and infinities.

    >>> replace_nonfinite({"loss": math.nan, "curve": (1.0, math.inf)})
    {'loss': None, 'curve': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: replace_nonfinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
