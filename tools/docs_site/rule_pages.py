"""Pages of the doctor's rules, from their docstrings and the findings in their code."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from addnorm.doctor.report import SEVERITIES
from addnorm.doctor.rules import RULES

GUIDE = "../../guides/doctor.md"
MISTAKES = "../../explanation/common-mistakes.md"


def rule_pages(mistakes: str) -> dict[str, str]:
    """Return the page of each rule.

    Args:
        mistakes: text of the page of common mistakes, to which rules named there link
    """
    return {f"catalogue/rules/{name}.md": rule_page(name, mistakes) for name in RULES}


def rule_page(name: str, mistakes: str) -> str:
    """Return the page of one rule."""
    rule = RULES[name]
    summary, _, details = (inspect.getdoc(rule) or "").partition("\n\n")
    parts = [f"# {name}", as_markdown(summary)]
    parts += [as_markdown(paragraph) for paragraph in details.split("\n\n") if paragraph]
    severities = find_severities(rule)
    if severities:
        levels = " or ".join(f"**{each}**" for each in severities)
        parts.append(f"Severity of its findings: {levels}.")
    messages = find_messages(rule)
    if messages:
        parts += ["## What it reports", "\n".join(f"- {message}" for message in messages)]
    parts += [
        "## Use",
        "```python\nimport addnorm\n\nreport = addnorm.doctor(model, inputs)\n"
        f'print([each for each in report.findings if each.rule == "{name}"])\n```',
        f"The [guide to the doctor]({GUIDE}) explains severities, evidence and exit codes."
        + (f" See also [common mistakes]({MISTAKES})." if f"`{name}`" in mistakes else ""),
    ]
    return "\n\n".join(parts) + "\n"


def link_rules(pages: dict[str, str]) -> None:
    """Link to the page of each rule from the table of rules."""
    table = pages["catalogue/rules.md"]
    pages["catalogue/rules.md"] = re.sub(
        r"^\| `(\w+)` \|", r"| [`\1`](rules/\1.md) |", table, flags=re.MULTILINE
    )


def find_severities(rule: Callable[..., Any]) -> list[str]:
    """Return the severities that occur in the code of a rule, from remark to error."""
    nodes = [node for tree in parse_with_helpers(rule) for node in ast.walk(tree)]
    constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return [each for each in SEVERITIES if each in constants]


def find_messages(rule: Callable[..., Any]) -> list[str]:
    """Return the messages of the findings; values that depend on the model become `...`."""
    messages: list[str] = []
    for tree in parse_with_helpers(rule):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                named = [each.value for each in node.keywords if each.arg == "message"]
                for argument in node.args[3:4] or named:
                    messages += read_texts(argument, tree)
    return list(dict.fromkeys(message for message in map(as_markdown, messages) if message))


def parse_with_helpers(rule: Callable[..., Any]) -> list[ast.Module]:
    """Return the code of a rule and of the functions of `doctor.rules` that it uses."""
    found: dict[str, ast.Module] = {}
    waiting = [inspect.unwrap(rule)]
    while waiting:
        function = waiting.pop(0)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        found[function.__qualname__] = tree
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in sorted(names - set(found)):
            value = function.__globals__.get(name)
            if inspect.isfunction(value) and value.__module__.startswith("addnorm.doctor.rules."):
                waiting += [] if value in RULES.values() else [value]
    return list(found.values())


def read_texts(node: ast.expr, tree: ast.Module) -> list[str]:
    """Return the texts that an expression can have; a local variable has those assigned to it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        pieces = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
        return ["".join(map(str, pieces))]
    if isinstance(node, ast.IfExp):
        return read_texts(node.body, tree) + read_texts(node.orelse, tree)
    if isinstance(node, ast.BinOp):
        ends = read_texts(node.right, tree) or ["..."]
        return [start + end for start in read_texts(node.left, tree) for end in ends]
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in ast.walk(tree)
            if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == node.id
        ]
        return [text for value in values for text in read_texts(value, tree)]
    return []


def as_markdown(text: str) -> str:
    """Return prose with the characters escaped that Markdown would interpret outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
