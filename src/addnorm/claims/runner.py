"""Claims from their names to their results; interrupted anywhere and called again, it goes on."""

import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from addnorm.claims.claim import BUDGETS, Budget, Claim, Desk, name_of, registry
from addnorm.claims.result import Result, made_here
from addnorm.comparison.engines.base import Engine
from addnorm.comparison.run import Audience
from addnorm.core.errors import UnknownName, UserError, unknown
from addnorm.train.run_folder import locked

STUDIES, ERROR = "studies", "error.txt"


class Watch:
    """Whoever follows; every method may stay as it is."""

    def began(self, claim: Claim, *, number: int, total: int) -> Audience | None:
        """A claim begins; who follows its comparisons."""

    def ended(self, claim: Claim, result: Result, *, again: bool) -> None:
        """It has a result. again: whether it was there already."""

    def said(self, words: str) -> None:
        """How far a claim is, now and then, where it has no comparison to follow."""


def find(names: Sequence[str]) -> list[Claim]:
    """Claims by name, each once; a name that is none is refused with the nearest."""
    for name in names:
        if name not in registry:
            raise UnknownName(unknown("claim", name, registry))
    return [registry.member(name)() for name in dict.fromkeys(names)]


def run_claims(
    names: Sequence[str],
    folder: str | Path,
    *,
    budget: Budget = "standard",
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> dict[str, Result]:
    """Run every claim that has no result yet, one after the other.

    One that has a result is judged again from its rows, by the rule of today. A claim that crashes
    is a result with its reason; it is tried once more in the next sitting. So is one whose settings
    or revision are no longer those of its file.
    """
    if budget not in BUDGETS:
        raise UnknownName(unknown("budget", budget, BUDGETS))
    claims, folder, watch = find(names), Path(folder).absolute(), watch or Watch()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; wanted a new folder, or one of claims, for -o")
    _refuse_strangers(folder)
    made: dict[str, Result] = {}
    with locked(folder, doing="running claims"):
        _refuse_another(folder, budget)
        for number, claim in enumerate(claims, start=1):
            name = name_of(claim)
            before = Result.read(folder / name)
            done = before is not None and before.verdict is not None
            if before is not None and done and claim.made(before.digest, budget):
                before.save(folder / name)
                made[name] = before
                watch.ended(claim, before, again=True)
                continue
            audience = watch.began(claim, number=number, total=len(claims))
            desk = Desk(folder / name, folder / STUDIES, engine, audience, watch.said)
            made[name] = _run(claim, desk, budget)
            watch.ended(claim, made[name], again=False)
    return made


def _run(claim: Claim, desk: Desk, budget: Budget) -> Result:
    name, begun = name_of(claim), time.monotonic()
    desk.folder.mkdir(parents=True, exist_ok=True)
    digest, rows, verdict, why = claim.digest(budget), [], None, ""
    try:
        rows = claim.rows(budget, desk)
        verdict = claim.judge(rows)
        (desk.folder / ERROR).unlink(missing_ok=True)
    except UserError:
        raise  # the user's to mend (a full disk, say), and no claim is to blame
    except Exception as problem:
        why = " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
        (desk.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
    result = Result(
        claim=name,
        budget=budget,
        digest=digest,
        verdict=verdict,
        why=why,
        seconds=round(time.monotonic() - begun, 1),
        made=made_here(),
        rows=rows,
    )
    result.save(desk.folder)
    return result


def _refuse_strangers(folder: Path) -> None:
    """A folder that holds things, and none of ours, is somebody else's."""
    found = sorted(path.name for path in folder.glob("[!.]*"))
    if found and not {*registry, STUDIES} & set(found):
        raise UserError(
            f"{folder} holds other things ({', '.join(found[:3])}, ...) and no claims; wanted a "
            "new or empty folder for -o"
        )


def _refuse_another(folder: Path, budget: Budget) -> None:
    """A folder is of one budget, so that no page mixes them."""
    for name in registry:
        found = Result.read(folder / name)
        if found is not None and found.budget != budget:
            raise UserError(
                f"{folder} holds claims of budget {found.budget!r}, wanted {budget!r}; choose "
                f"another -o, or --budget {found.budget}"
            )
