"""Results of claims in docs/claims and the table made from them.

addnorm claims run --all -o claims && python -m tools.claims_docs claims   copy and regenerate them
"""

import shutil
import sys
from pathlib import Path

from addnorm.claims import read_results, registry
from addnorm.claims.result import RESULT, ROWS, Result
from addnorm.report.claims_page import TABLE_FILE, render_claims_markdown

DOCS = Path(__file__).parent.parent / "docs" / "claims"


def copy_results(folder: Path) -> list[str]:
    """Copy the rows and result of every claim with a verdict by its current settings.

    Returns:
        The names of the copied claims.
    """
    names = [name for name, result in read_results(folder).items() if _is_finished(result)]
    for name in names:
        (DOCS / name).mkdir(parents=True, exist_ok=True)
        for file in (ROWS, RESULT):
            shutil.copyfile(folder / name / file, DOCS / name / file)
    (DOCS / TABLE_FILE).write_text(render_claims_markdown(read_results(DOCS)), encoding="utf-8")
    return names


def _is_finished(result: Result) -> bool:
    claim = registry.member(result.claim)()
    return result.verdict is not None and claim.is_current(result.digest, result.budget)


if __name__ == "__main__":
    print("\n".join(copy_results(Path(sys.argv[1]))))
