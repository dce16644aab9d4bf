"""What is kept of a claim that was run: rows, verdict, and what it takes to do it again."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from addnorm import __version__
from addnorm.claims.base import Budget, registry
from addnorm.claims.verdict import Answer, Verdict
from addnorm.core.errors import UserError
from addnorm.core.rows import Row, read_rows, write_rows
from addnorm.lab.folder import read_json, write_json
from addnorm.lab.ground import machine

RESULT, ROWS = "result.json", "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One claim, run to its end or to a crash."""

    claim: str
    budget: Budget
    digest: str
    """What tells its settings from others."""
    verdict: Verdict | None
    """None if it crashed."""
    why: str = ""
    """The reason, where it crashed."""
    seconds: float = 0.0
    made: Mapping[str, str] = field(default_factory=dict)
    """By which code, on which machine."""
    rows: Sequence[Row] = ()

    @property
    def answer(self) -> Answer | str:
        """held, not held or undecided; crashed if there is no verdict."""
        return "crashed" if self.verdict is None else self.verdict.answer

    @property
    def command(self) -> str:
        """Does it again."""
        return f"addnorm claims run {self.claim} --budget {self.budget} -o claims"

    def save(self, folder: Path) -> None:
        """Write rows, then the result: from then on the claim is done."""
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / ROWS, self.rows)
        told = asdict(self) | {"verdict": self.verdict.to_dict() if self.verdict else None}
        told.pop("rows")
        write_json(folder / RESULT, told | {"command": self.command})

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """The result of a folder; None if there is none."""
        told = read_json(folder / RESULT)
        if told is None:
            return None
        try:
            verdict = told["verdict"] and Verdict.from_dict(told["verdict"])
            names = ("claim", "budget", "digest", "why", "seconds", "made")
            rows = tuple(read_rows(folder / ROWS))
            return cls(**{name: told[name] for name in names}, verdict=verdict, rows=rows)
        except (KeyError, TypeError) as problem:
            raise UserError(
                f"{folder / RESULT} does not tell what became of a claim ({problem!r}); remove it, "
                "and run the claim again"
            ) from None


def results(folder: Path) -> dict[str, Result]:
    """What was run in a folder, in the order of the registry; claims of others are left out."""
    found = {name: Result.read(folder / name) for name in registry}
    return {name: result for name, result in found.items() if result is not None}


def is_claims(folder: Path) -> bool:
    """Whether claims were run in a folder."""
    return any(path.parent.name in registry for path in folder.glob(f"*/{RESULT}"))


def made_here() -> dict[str, str]:
    """The code and the machine that make numbers now."""
    told = {"addnorm": __version__, "torch": torch.__version__, "python": platform.python_version()}
    commit = _commit()
    return told | machine() | ({"commit": commit} if commit else {})


def _commit() -> str:
    """The commit of the code that runs, marked if files were changed; empty outside of git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + (" with changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
