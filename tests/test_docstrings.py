"""The style of docstrings: what CONTRIBUTING says about them and a program can check."""

import ast
import re

import pytest

from tests.source_tree import FILES, SOURCE


def relative_name(path):
    return path.relative_to(SOURCE).as_posix()


FUNCTION_WORDS = {"a", "all", "an", "from", "in", "its", "of", "one", "return", "the", "this", "to"}
SYNONYMS = {"num": "number", "init": "initialize"}


def words_of(text):
    """Return the words of a name or a sentence, in lower case and without a plural s."""
    words = (word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text))
    singular = (word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words)
    return {SYNONYMS.get(word, word) for word in singular}


def docstrings(node, names=()):
    """Yield (node, docstring, names) of the functions and classes in a node.

    The names are those of the function or class, of its bases and of the classes around it.
    """
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            own = (child.name, *(ast.unparse(base) for base in getattr(child, "bases", ())))
            if docstring := ast.get_docstring(child):
                yield child, docstring, (*names, *own)
            if isinstance(child, ast.ClassDef):
                inner = (*names, *own)
        yield from docstrings(child, inner)


def find_repetitions(tree):
    """Return the functions and classes whose docstring says no more than their names."""
    return [
        node.name
        for node, docstring, names in docstrings(tree)
        if words_of(docstring) <= FUNCTION_WORDS | words_of(" ".join(names))
    ]


def find_functions_described_as_flags(tree):
    """Return the functions, properties excepted, whose docstring begins with "Whether"."""
    return [
        node.name
        for node, docstring, _ in docstrings(tree)
        if isinstance(node, ast.FunctionDef)
        and docstring.startswith("Whether ")
        and not any("property" in ast.unparse(each) for each in node.decorator_list)
    ]


ENTRY = re.compile(r"(?m)^ {4}(?P<name>[*\w][\w*, ]*): (?P<text>.+(?:\n {5,}.+)*)")
PROPER_NOUNS = {"Adam", "Altair", "Arrow", "False", "None", "Python", "True"}


def find_irregular_entries(tree):
    """Return the entries of `Args:` and `Raises:` that break the style of CONTRIBUTING.

    They begin in lower case, and end with a full stop only if they have several sentences.
    """
    irregular = []
    for node, docstring, _ in docstrings(tree):
        for section in re.findall(r"(?ms)^(?:Args|Raises):\n(.*?)(?:\n\n|\Z)", docstring):
            for entry in ENTRY.finditer(section):
                text = re.sub(r"\s+", " ", entry["text"])
                first = re.match(r"[A-Z][a-z]*(?= )", text)
                upper = first is not None and first[0] not in PROPER_NOUNS
                stop = text.endswith(".") and not text.endswith("...")
                if upper or (stop and not re.search(r"\.[)`\"']? [A-Z`]", text)):
                    irregular.append(f"{node.name}: {entry['name']}")
    return irregular


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_entries_of_docstrings_have_one_style(path):
    assert find_irregular_entries(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_find_irregular_entries_names_capitals_and_full_stops():
    docstring = (
        "Do it.\n\n    Args:\n        x: (B, L) tokens\n"
        "        y: None for all,\n            or one.\n"
        "        z: The scale\n        w: one. Two.\n\n    Returns:\n        r: A sum.\n    "
    )
    tree = ast.parse(f'def f():\n    """{docstring}"""')
    assert find_irregular_entries(tree) == ["f: y", "f: z"]


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_docstrings_do_not_only_repeat_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert find_repetitions(tree) == []
    assert find_functions_described_as_flags(tree) == []


def test_find_repetitions_compares_with_the_names_of_the_class_and_its_bases():
    tree = ast.parse(
        "class Presets(Table):\n"
        "    def card(self):\n        'Return the cards of the preset table.'\n"
        "    def num_rows(self):\n        'Number of rows.'\n"
        "    def names(self):\n        'Return the names, sorted.'\n"
        "    def is_open(self):\n        'Whether it is used.'\n"
        "    @property\n    def is_used(self):\n        'Whether a name is used.'\n"
    )
    assert find_repetitions(tree) == ["card", "num_rows"]
    assert find_functions_described_as_flags(tree) == ["is_open"]
