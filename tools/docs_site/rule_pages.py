"""Pages of the doctor's rules, from their docstrings and the findings in their code."""

import ast
import inspect
import re
import textwrap

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
        "```python\nreport = addnorm.doctor(model, inputs)\n"
        f'print([each for each in report.findings if each.rule == "{name}"])\n```',
        f"The [guide to the doctor]({GUIDE}) explains severities, evidence and exit codes."
        + (f" See also [common mistakes]({MISTAKES})." if f"`{name}`" in mistakes else ""),
    ]
    return "\n\n".join(parts) + "\n"


def link_rules(page: str) -> str:
    """Return the table of rules with a link for each name."""
    return re.sub(r"^\| `(\w+)` \|", r"| [`\1`](rules/\1.md) |", page, flags=re.MULTILINE)


def find_severities(rule: object) -> list[str]:
    """Return the severities that occur in the code of a rule, from remark to error."""
    constants = {node.value for node in ast.walk(parse(rule)) if isinstance(node, ast.Constant)}
    return [each for each in SEVERITIES if each in constants]


def find_messages(rule: object) -> list[str]:
    """Return the messages of the findings; values that depend on the model become `...`."""
    messages = []
    for node in ast.walk(parse(rule)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            texts = [as_text(argument) for argument in node.args[3:4]]
            messages += [text for text in texts if text and text not in messages]
    return messages


def parse(rule: object) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(rule)))  # type: ignore[arg-type]


def as_text(node: ast.expr) -> str:
    """Return a string constant or f-string as Markdown; empty for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return as_markdown(node.value)
    if isinstance(node, ast.JoinedStr):
        pieces = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
        return as_markdown("".join(map(str, pieces)))
    return ""


def as_markdown(text: str) -> str:
    """Return prose with the characters escaped that Markdown would interpret outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
