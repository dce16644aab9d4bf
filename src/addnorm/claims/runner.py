"""Claims from their names to their results; interrupted anywhere and called again, it goes on."""

import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.claim import BUDGETS, Budget, Claim, ClaimWorkspace, claim_name, registry
from addnorm.claims.result import Result, provenance
from addnorm.comparison.engines.base import Engine
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.core.files import folder_lock

STUDIES, ERROR_FILE = "studies", "error.txt"


def find_claims(names: Sequence[str]) -> list[Claim]:
    """Claims by name, each once; a name that is none is refused with the nearest."""
    for name in names:
        if name not in registry:
            raise UnknownNameError(unknown_name_message("claim", name, registry))
    return [registry.member(name)() for name in dict.fromkeys(names)]


def run_claims(
    names: Sequence[str],
    folder: str | Path,
    *,
    budget: Budget = "standard",
    engine: Engine | None = None,
    callback: ClaimsCallback | None = None,
) -> dict[str, Result]:
    """Run every claim that has no result yet, one after the other.

    One that has a result is judged again from its rows, by the rule of today. A claim that crashes
    is a result with its reason; it is tried once more in the next sitting. So is one whose settings
    or revision are no longer those of its file.
    """
    if budget not in BUDGETS:
        raise UnknownNameError(unknown_name_message("budget", budget, BUDGETS))
    claims, folder, callback = (
        find_claims(names),
        Path(folder).absolute(),
        callback or ClaimsCallback(),
    )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; wanted a new folder, or one of claims, for -o")
    _reject_foreign_files(folder)
    made: dict[str, Result] = {}
    with folder_lock(folder, activity="running claims"):
        _reject_other_budget(folder, budget)
        for number, claim in enumerate(claims, start=1):
            name = claim_name(claim)
            before = Result.read(folder / name)
            done = before is not None and before.verdict is not None
            if before is not None and done and claim.is_current(before.digest, budget):
                before.save(folder / name)
                made[name] = before
                callback.on_claim_end(claim, before, cached=True)
                continue
            callback.on_claim_start(claim, number=number, total=len(claims))
            workspace = ClaimWorkspace(folder / name, folder / STUDIES, engine, callback)
            made[name] = _run_claim(claim, workspace, budget)
            callback.on_claim_end(claim, made[name], cached=False)
    return made


def _run_claim(claim: Claim, workspace: ClaimWorkspace, budget: Budget) -> Result:
    name, begun = claim_name(claim), time.monotonic()
    workspace.folder.mkdir(parents=True, exist_ok=True)
    digest, rows, verdict, why = claim.digest(budget), [], None, ""
    try:
        rows = claim.rows(budget, workspace)
        verdict = claim.judge(rows)
        (workspace.folder / ERROR_FILE).unlink(missing_ok=True)
    except UserError:
        raise  # the user's to mend (a full disk, say), and no claim is to blame
    except Exception as problem:
        why = " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
        (workspace.folder / ERROR_FILE).write_text(traceback.format_exc(), encoding="utf-8")
    result = Result(
        claim=name,
        budget=budget,
        digest=digest,
        verdict=verdict,
        why=why,
        seconds=round(time.monotonic() - begun, 1),
        made=provenance(),
        rows=rows,
    )
    result.save(workspace.folder)
    return result


def _reject_foreign_files(folder: Path) -> None:
    """A folder that holds things, and none of ours, is somebody else's."""
    found = sorted(path.name for path in folder.glob("[!.]*"))
    if found and not {*registry, STUDIES} & set(found):
        raise UserError(
            f"{folder} holds other things ({', '.join(found[:3])}, ...) and no claims; wanted a "
            "new or empty folder for -o"
        )


def _reject_other_budget(folder: Path, budget: Budget) -> None:
    """A folder is of one budget, so that no page mixes them."""
    for name in registry:
        found = Result.read(folder / name)
        if found is not None and found.budget != budget:
            raise UserError(
                f"{folder} holds claims of budget {found.budget!r}, wanted {budget!r}; choose "
                f"another -o, or --budget {found.budget}"
            )
