"""What is kept of a claim that was run: rows, verdict, and what it takes to do it again."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from addnorm.claims.checks import Answer, Verdict
from addnorm.claims.claim import Budget, registry
from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json
from addnorm.core.rows import Row, read_rows, write_rows
from addnorm.train.environment import collect_versions, describe_machine

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
        told["rows"] = len(self.rows)
        write_json(folder / RESULT, told | {"command": self.command})

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """The result of a folder, judged from its rows by the rule of today; None if there is none.

        The verdict in the file is for readers without addnorm.
        """
        try:
            told = read_json(folder / RESULT)
            if told is None:
                return None
            rows = tuple(read_rows(folder / ROWS))
            if len(rows) != told["rows"]:
                raise UserError(f"{ROWS} has {len(rows)} rows of {told['rows']}")
            names = ("claim", "budget", "digest", "why", "seconds", "made")
            judge = registry.member(told["claim"])().judge
            verdict = None if told["verdict"] is None else judge(rows)
            return cls(**{name: told[name] for name in names}, verdict=verdict, rows=rows)
        except (KeyError, TypeError, UserError) as problem:
            why = (
                str(problem).partition(";")[0] if isinstance(problem, UserError) else repr(problem)
            )
            raise UserError(
                f"{folder} does not tell what became of a claim ({why}); remove it, and run the "
                "claim again"
            ) from None


def read_results(folder: Path) -> dict[str, Result]:
    """What was run in a folder, in the order of the registry; claims of others are left out."""
    found = {name: Result.read(folder / name) for name in registry}
    return {name: result for name, result in found.items() if result is not None}


def is_claims_folder(folder: Path) -> bool:
    """Whether claims were run in a folder."""
    return any(path.parent.name in registry for path in folder.glob(f"*/{RESULT}"))


def provenance() -> dict[str, str]:
    """The code and the machine that make numbers now."""
    commit = current_commit()
    return collect_versions() | describe_machine() | ({"commit": commit} if commit else {})


@cache
def current_commit() -> str:
    """The commit of the code that runs, marked if files were changed; empty outside of git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + (" with changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
