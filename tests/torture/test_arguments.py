"""Random and odd arguments for every command: one line and a known exit code, never a traceback."""

import random
import warnings

import pytest
import typer

from addnorm.cli.main import COMMANDS, _app
from addnorm.train.recipe import list_recipe_keys
from tests.torture.valid_commands import replace_long_work, valid_lines

ODD_TEXTS = (
    *("", " ", "-", "--", "=", "a=b", "=b", "a=", "[", "{", "(((", "rms(", "rms(eps=", "%s", "\n"),
    *("ü€😀", "\udc80", "\u202e", "a" * 5000, "../..", "/", "~", "None", "null", "true", "1,2,,"),
    *("b2t(b2t(b2t))", "dim=dim", "*", "hf:", "hf:bert", "a:b", "x.py:y", "sweep", "pre_ln,", "\t"),
)
ODD_NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "1.5",
        "-0.0",
        "1e309",
        "-1e309",
        "nan",
        "inf",
        "9" * 30,
        "-" + "9" * 30,
    ),
    *(str(2**31), str(2**63), str(2**64), "1e-400", "0x10", "1_000", "١٢", "1e400", "1e5", "0.5"),
)
ABSURD_NUMBERS = ("0", "-1", "nan", "inf", "1e309", str(2**31), str(2**63), "-" + "9" * 30)
ODD_FILES = (
    *("empty", "folder", "binary", "text.txt", "list.json", "deep.json", "bad.yaml", "table.csv"),
    *("ragged.csv", "loop", "nowhere", "missing", "missing/missing", "x" * 300),
)


def leaf_commands():
    """Return the parameters of each command by its words, such as ("data", "demo")."""
    root = typer.main.get_command(_app())
    found = {}
    for name, command in root.commands.items():
        nested = getattr(command, "commands", None)
        if nested is None:
            found[(name,)] = command.params
        else:
            found |= {(name, verb): each.params for verb, each in nested.items()}
    return found


LEAVES = leaf_commands()


def random_value(rng, texts):
    kind = rng.random()
    if kind < 0.35:
        return str(texts / rng.choice(ODD_FILES))
    if kind < 0.65:
        return rng.choice(ODD_NUMBERS)
    if kind < 0.9:
        return rng.choice(ODD_TEXTS)
    return "".join(
        chr(rng.choice((rng.randrange(1, 128), 0x4E00))) for _ in range(rng.randrange(9))
    )


def random_arguments(rng, words, texts):
    """Return a command line with odd arguments, or a valid one with odd options."""
    options = [each for each in LEAVES[words] if each.param_type_name == "option"]
    arguments = [each for each in LEAVES[words] if each.param_type_name == "argument"]
    if rng.random() < 0.5:
        line = list(valid_lines()[words])
    else:
        line = [
            random_value(rng, texts) for each in arguments if each.required or rng.random() < 0.4
        ]
    line += [random_value(rng, texts)] * (rng.random() < 0.1)
    for option in rng.sample(options, min(len(options), rng.randrange(4))):
        name = rng.choice(option.opts + option.secondary_opts)
        line += (
            [name] if option.is_flag or rng.random() < 0.05 else [name, random_value(rng, texts)]
        )
    if rng.random() < 0.03:
        line.append(rng.choice(("--nonsense", "-Z", "--help", "--out")))
    return [*words, *line, *(["--dry-run"] if words == ("compare",) else [])]


def numeric_options():
    """Return a (words, option name) pair for each option that is a number."""
    return [
        (words, option.opts[0])
        for words, params in LEAVES.items()
        for option in params
        if option.param_type_name == "option" and option.type_descriptor.annotation in (int, float)
    ]


@pytest.mark.cases(2)
@pytest.mark.parametrize("words", LEAVES, ids="-".join)
def test_odd_arguments(run, texts, words, case_seed, monkeypatch):
    replace_long_work(monkeypatch, words)
    rng = random.Random(f"{case_seed} {words}")
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(*random_arguments(rng, words, texts))


def test_every_command_is_covered():
    assert {words[0] for words in LEAVES} == set(COMMANDS)


@pytest.mark.parametrize(("words", "option"), numeric_options(), ids=str)
def test_absurd_numbers(run, words, option, monkeypatch):
    """A number of any size is accepted or rejected in one line."""
    replace_long_work(monkeypatch, words)
    for value in ABSURD_NUMBERS:
        run(*words, *valid_lines()[words], f"{option}={value}", stdin=b"ab\n")


def test_numeric_options_are_found():
    assert {"--beam", "--workers", "--seed", "--depth"} <= {name for _, name in numeric_options()}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_absurd_recipe_keys(run, task, monkeypatch):
    """A recipe key of any size is accepted or rejected in one line."""
    replace_long_work(monkeypatch, ("train",))
    line = dict(part.split("=") for part in valid_lines()[("train",)] if "=" in part)
    keys = [name for name, *_ in list_recipe_keys(task) if name not in ("task", "data")]
    assert len(keys) > 40
    for name in keys:
        for value in ("-1", str(2**63), "9" * 30, ".nan"):
            pairs = [f"{key}={each}" for key, each in (line | {name: value}).items()]
            run("train", task, *pairs, "-o", f"{name}-{value}")


@pytest.mark.parametrize("pair", ["steps", "vocab", "depth", "dim", "max_length", "batch_tokens"])
def test_count_beyond_64_bits_is_rejected(run, pair, monkeypatch):
    replace_long_work(monkeypatch, ("train",))
    line = [each for each in valid_lines()[("train",)] if not each.startswith(f"{pair}=")]
    ended = run("train", *line, f"{pair}={2**63}")
    assert ended.code == 2
    assert ended.err.startswith(f"addnorm: {pair}: expected") and ended.err.count("\n") == 1
