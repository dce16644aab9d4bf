"""Runs claims and stores their results; an interrupted call can be resumed."""

import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.claim import BUDGETS, Budget, Claim, ClaimWorkspace, claim_name, registry
from addnorm.claims.result import Result, collect_provenance
from addnorm.comparison.engines.base import Engine
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.core.locks import folder_lock

STUDIES, ERROR_FILE = "studies", "error.txt"


def find_claims(names: Sequence[str]) -> list[Claim]:
    """Return the claims with these names, each once.

    Raises:
        UnknownNameError: a name is not registered; the message suggests close names
    """
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
    """Run claims one after the other and return their results by name.

    A claim with a stored result of the same settings and revision is not run again; the current
    rule judges its stored rows. A claim that crashes gets a result with the reason and is run again
    by the next call. A claim whose data are not on this machine is skipped with a message.

    Args:
        names: names of claims
        folder: output folder; finished claims in it are kept
        budget: smoke, standard or full; a folder holds claims of one budget
        engine: where the cells of comparisons run; by default processes on this machine
        callback: receives the progress

    Raises:
        UserError: a name or the budget is unknown, the folder contains something else, or the
            data of every claim are missing
    """
    if budget not in BUDGETS:
        raise UnknownNameError(unknown_name_message("budget", budget, BUDGETS))
    claims, folder, callback = (
        find_claims(names),
        Path(folder).absolute(),
        callback or ClaimsCallback(),
    )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"expected a new or empty output folder, got {folder}, which is a file")
    _reject_foreign_files(folder)
    results: dict[str, Result] = {}
    reason = ""
    with folder_lock(folder, activity="running claims"):
        _reject_other_budget(folder, budget)
        for number, claim in enumerate(claims, start=1):
            name = claim_name(claim)
            stored = Result.read(folder / name)
            is_done = stored is not None and stored.verdict is not None
            if stored is not None and is_done and claim.is_current(stored.digest, budget):
                stored.save(folder / name)  # with the verdict of the current rule
                results[name] = stored
                callback.on_claim_end(claim, stored, cached=True)
                continue
            if reason := claim.find_missing_data(budget):
                callback.on_message(f"{name} is skipped: {reason}")
                continue
            callback.on_claim_start(claim, number=number, total=len(claims))
            workspace = ClaimWorkspace(folder / name, folder / STUDIES, engine, callback)
            results[name] = _run_claim(claim, workspace, budget)
            callback.on_claim_end(claim, results[name], cached=False)
    if reason and not results:
        raise UserError(reason)
    return results


def _run_claim(claim: Claim, workspace: ClaimWorkspace, budget: Budget) -> Result:
    name, start = claim_name(claim), time.monotonic()
    workspace.folder.mkdir(parents=True, exist_ok=True)
    digest, rows, verdict, why = claim.digest(budget), [], None, ""
    try:
        rows = claim.rows(budget, workspace)
        verdict = claim.judge(rows)
        (workspace.folder / ERROR_FILE).unlink(missing_ok=True)
    except UserError:
        raise  # a problem of the environment, such as a full disk, not a result of the claim
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        (workspace.folder / ERROR_FILE).write_text(traceback.format_exc(), encoding="utf-8")
    result = Result(
        claim=name,
        budget=budget,
        digest=digest,
        verdict=verdict,
        why=why,
        seconds=round(time.monotonic() - start, 1),
        made=collect_provenance(),
        rows=rows,
    )
    result.save(workspace.folder)
    return result


def _reject_foreign_files(folder: Path) -> None:
    names = sorted(path.name for path in folder.glob("[!.]*"))
    if names and not {*registry, STUDIES} & set(names):
        raise UserError(
            f"expected a new or empty output folder, got {folder}, which contains "
            f"{', '.join(names[:3])}, ... and no claims"
        )


def _reject_other_budget(folder: Path, budget: Budget) -> None:
    # A report must not mix budgets.
    for name in registry:
        result = Result.read(folder / name)
        if result is not None and result.budget != budget:
            raise UserError(
                f"budget: expected {result.budget!r}, the budget of the claims in {folder}, got "
                f"{budget!r}; choose another output folder"
            )
