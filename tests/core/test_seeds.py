"""Seeds: equal on all machines, independent of each other."""

import subprocess
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.seeds import derive_seed


def test_seeds_never_change():
    """A change would alter every published run: do not adapt these numbers."""
    assert derive_seed(0) == 3456079177858693020
    assert derive_seed(0, "data") == 8767684250584988593
    assert derive_seed(1, "init", 3) == 5694931104608081410


def test_seeds_do_not_depend_on_the_process():
    code = "from addnorm.core import derive_seed; print(derive_seed(7, 'data', 'de', 3))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert int(printed) == derive_seed(7, "data", "de", 3)


@given(st.integers(), st.lists(st.one_of(st.text(), st.integers()), max_size=3))
def test_seeds_are_valid_for_torch(seed, names):
    assert 0 <= derive_seed(seed, *names) < 2**63


def test_names_order_and_seed_all_matter():
    paths = [(0,), (1,), (0, "a"), (0, "b"), (0, "a", "b"), (0, "b", "a"), (0, "ab"), (0, 1), (-1,)]
    assert len({derive_seed(*path) for path in paths}) == len(paths)


def test_neighboring_seeds_are_uncorrelated():
    """About half of the bits differ from one seed to the next."""
    seeds = [derive_seed(seed, "init") for seed in range(200)]
    flips = [(a ^ b).bit_count() for a, b in pairwise(seeds)]
    assert 29 < sum(flips) / len(flips) < 34
