"""Stored result of a claim: rows, verdict and provenance."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from addnorm.claims.checks import Answer, Verdict
from addnorm.claims.claim import Budget, registry
from addnorm.core.display import render_html
from addnorm.core.errors import UserError
from addnorm.core.files import check_file, file_checksum, read_json_and_files, write_json
from addnorm.core.rows import Row, read_rows, write_rows
from addnorm.train.environment import collect_versions, describe_machine

RESULT, ROWS = "result.json", "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one claim, finished or crashed."""

    claim: str
    budget: Budget
    digest: str
    """Hash of settings and revision; see `Claim.digest`."""
    verdict: Verdict | None
    """None if it crashed."""
    why: str = ""
    """Reason of the crash."""
    seconds: float = 0.0
    made: Mapping[str, str] = field(default_factory=dict)
    """Versions, machine and commit."""
    rows: Sequence[Row] = ()

    @property
    def answer(self) -> Answer | str:
        """held, not held or undecided; crashed if there is no verdict."""
        return "crashed" if self.verdict is None else self.verdict.answer

    def __str__(self) -> str:
        why = self.verdict.why if self.verdict else self.why
        return f"{self.claim} ({self.budget}): {self.answer}; {why}"

    def _repr_html_(self) -> str:
        checks = self.verdict.checks if self.verdict else ()
        rows = [(each.what, each.answer) for each in checks]
        title = f"{self.claim} ({self.budget}): {self.answer}"
        why = self.verdict.why if self.verdict else self.why
        return render_html(title, [why], head=("check", "answer"), rows=rows)

    @property
    def command(self) -> str:
        """Command that reproduces the result."""
        return f"addnorm claims run {self.claim} --budget {self.budget} -o claims"

    def save(self, folder: Path) -> None:
        """Write the rows, then `result.json`, which marks the claim as finished."""
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / ROWS, self.rows)
        data = asdict(self) | {"verdict": self.verdict.to_dict() if self.verdict else None}
        data["rows"] = len(self.rows)
        checksums = {ROWS: file_checksum(folder / ROWS)}
        write_json(folder / RESULT, data | {"command": self.command}, files=checksums)

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """Read a result and judge its rows by the current rule; return None if there is none.

        The verdict stored in the file is for readers without addnorm.
        """
        try:
            data, checksums = read_json_and_files(folder / RESULT)
            if data is None:
                return None
            rows = tuple(read_rows(folder / ROWS))
            if len(rows) != data["rows"]:
                raise UserError(f"{ROWS}: expected {data['rows']} rows, got {len(rows)}")
            if ROWS in checksums:
                check_file(folder / ROWS, checksums[ROWS], hint="run it again")
            names = ("claim", "budget", "digest", "why", "seconds", "made")
            judge = registry.member(data["claim"])().judge
            verdict = None if data["verdict"] is None else judge(rows)
            return cls(**{name: data[name] for name in names}, verdict=verdict, rows=rows)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            why = str(error).partition(";")[0] if isinstance(error, UserError) else repr(error)
            raise UserError(
                f"{folder} is not the result of a claim ({why}); remove it and run the claim again"
            ) from None


def read_results(folder: Path) -> dict[str, Result]:
    """Return the results in a folder, in the order of the registry; ignore unknown claims."""
    results = {name: Result.read(folder / name) for name in registry}
    return {name: result for name, result in results.items() if result is not None}


def is_claims_folder(folder: Path) -> bool:
    """Return whether a folder contains results of claims."""
    return any(path.parent.name in registry for path in folder.glob(f"*/{RESULT}"))


def collect_provenance() -> dict[str, str]:
    """Return the versions, the machine and the commit of the running code."""
    commit = get_commit()
    return collect_versions() | describe_machine() | ({"commit": commit} if commit else {})


@cache
def get_commit() -> str:
    """Return the commit of the running code, marked if files changed; empty outside git."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + (" with changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
