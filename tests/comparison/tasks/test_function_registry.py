"""Registration of tasks of one's own."""

import math

import pytest

import addnorm
from addnorm.comparison.tasks.function_registry import FUNCTIONS
from addnorm.core.errors import UserError


@pytest.fixture(autouse=True)
def forget_tasks():
    """Remove the tasks that a test registers."""
    known = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(known)


def test_two_functions_with_one_name_are_refused():
    """As after copying a function; the first one would lose its metric and baseline."""

    @addnorm.task("copied", baseline=4.0)
    def first(cell):
        """Train."""

    with pytest.raises(UserError, match="two functions are the task 'copied'"):

        @addnorm.task("copied")
        def second(cell):
            """Train."""

    assert FUNCTIONS["copied"].function is first


def test_a_function_may_be_defined_again():
    """As by running a notebook cell twice."""
    for baseline in (4.0, 5.0):

        @addnorm.task("again", baseline=baseline)
        def again(cell):
            """Train."""

    assert FUNCTIONS["again"].baseline == 5.0


@pytest.mark.parametrize("baseline", [math.nan, math.inf, "low"])
def test_baseline_is_a_finite_number(baseline):
    with pytest.raises(UserError, match="baseline: expected a"):
        addnorm.task("wrong", baseline=baseline)
