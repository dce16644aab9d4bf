"""`addnorm data gettext` and `libreoffice`: pairs that programs bring along, cleaned."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.data_make import check, languages_of, planned, write
from addnorm.cli.data_options import Force, From, Held, Json, Out, Seed, To

if TYPE_CHECKING:
    from addnorm.data.clean import Rules
    from addnorm.data.corpus import Record
    from addnorm.data.counts import Counts

Placeholders = Annotated[
    str,
    typer.Option(
        "--placeholders", help="Pairs with %s, {name}, tags or paths: drop, mask or keep."
    ),
]
Duplicates = Annotated[
    str,
    typer.Option("--duplicates", help="Keep one pair of a source, one of each pair, or keep all."),
]
Ratio = Annotated[
    float, typer.Option("--ratio", help="How many times longer one side may be, in characters.")
]
MinWords = Annotated[int, typer.Option("--min-words", min=0, help="Words a pair has at least.")]
MaxWords = Annotated[int, typer.Option("--max-words", min=1, help="Words a side has at most.")]

Find = Callable[..., "Iterator[Record]"]


def cleaned(
    *, languages: tuple[str, str], placeholders: str, duplicates: str
) -> Callable[[Find], Callable[..., None]]:
    """Decorator: makes a command of a function that finds pairs below folders.

    The command has the arguments of the function, which are folders, and the options of all such
    commands with these defaults. The function gets `languages`, `rules` and `counts` besides.
    """
    ours, theirs = languages

    def options(
        out: Out,
        source: From = ours,
        target: To = theirs,
        placeholders: Placeholders = placeholders,
        duplicates: Duplicates = duplicates,
        ratio: Ratio = 4.0,
        min_words: MinWords = 1,
        max_words: MaxWords = 100,
        valid: Held = None,
        test: Held = None,
        seed: Seed = 0,
        force: Force = False,
        json: Json = False,
    ) -> None:
        """Only its signature is used."""

    def made(find: Find) -> Callable[..., None]:
        kinds = inspect.signature(find).parameters.values()
        own = [each for each in kinds if each.kind is not each.KEYWORD_ONLY]

        def command(**given: Any) -> None:
            _harvest(find, [given.pop(each.name) for each in own], **given)

        shared = inspect.signature(options).parameters.values()
        command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = find.__name__, find.__doc__
        return command

    return made


def _harvest(
    find: Find,
    folders: list[Any],
    *,
    out: Path,
    source: str,
    target: str,
    valid: str | None,
    test: str | None,
    seed: int,
    force: bool,
    json: bool,
    **rules: Any,
) -> None:
    """Clean what is found and write it."""
    from addnorm.data.clean import Rules
    from addnorm.data.counts import Counts

    counts = Counts()
    check(out, force=force)
    pairs = find(*folders, languages=(source, target), rules=Rules(**rules), counts=counts)
    named = [str(path) for each in folders for path in (each if isinstance(each, list) else [each])]
    about = {"source": find.__name__, "folders": named, **languages_of(source, target)}
    plan = planned({}, valid=valid, test=test, seed=seed)
    parts = {"train": pairs}
    write(out, "translate", parts=parts, counts=counts, plan=plan, about=about, json=json)


@cleaned(languages=("en", "de"), placeholders="drop", duplicates="source")
def gettext(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders with .mo or .po files below.")
    ],
    *,
    languages: tuple[str, str],
    rules: "Rules",
    counts: "Counts",
) -> "Iterator[Record]":
    """Translations of programs: all gettext catalogues below folders, cleaned."""
    from addnorm.data.clean import Cleaner
    from addnorm.data.harvest import harvest

    source, target = languages
    return harvest(folders, source=source, target=target, cleaner=Cleaner(rules, counts))


@cleaned(languages=("en-US", "de"), placeholders="keep", duplicates="pair")
def libreoffice(
    source_dir: Annotated[Path, typer.Argument(metavar="SOURCE_DIR", help="The help in one.")],
    target_dir: Annotated[Path, typer.Argument(metavar="TARGET_DIR", help="And the other.")],
    *,
    languages: tuple[str, str],
    rules: "Rules",
    counts: "Counts",
) -> "Iterator[Record]":
    """LibreOffice's help in two languages, aligned by paragraph.

    The folders are what two packages libreoffice-help-* unpack to.
    """
    from dataclasses import replace

    from addnorm.data.clean import Cleaner
    from addnorm.data.libreoffice import align

    cleaner = Cleaner(replace(rules, shortcuts=False), counts)  # help is no menu
    return align(source_dir, target_dir, languages=languages, cleaner=cleaner)
