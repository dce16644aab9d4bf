"""What a killed writer leaves must not stand in its own way."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.corpus_builder import check_out


def test_leftovers_of_a_killed_writer_are_no_strangers(tmp_path):
    (tmp_path / ".addnorm-spool").mkdir()
    for name in (".corpus.json.123", ".train.jsonl.123", "train.jsonl", "valid.jsonl"):
        (tmp_path / name).write_text("")
    check_out(tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="is not empty and no corpus"):
        check_out(tmp_path)
