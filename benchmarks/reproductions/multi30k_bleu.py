"""Tokenised BLEU of a run on text in BPE pieces, as `fairseq-generate --remove-bpe` reports it.

    python benchmarks/reproductions/multi30k_bleu.py RUN --average 10

Pieces are joined (`@@ ` is removed) in translations and references. `tokenised` compares the words
as they stand. A word of the reference with a piece that training has not seen cannot be matched, as
in fairseq; `all words` lets it. `13a` is sacreBLEU's default tokenizer on the same text. Beam 5,
scores divided by the length.
"""

import argparse
import json
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import UNKNOWN
from addnorm.decode.options import DecodingOptions
from addnorm.tasks import translate_texts
from addnorm.train.trained_run import TrainedRun


def join_pieces(text):
    return (text + " ").replace("@@ ", "").strip()


def hide_unknown(tokenizer, text):
    """Return a text with `<<unk>>`, which no translation contains, for each unknown piece."""
    [ids] = tokenizer.encode([text])
    pieces = zip(text.split(), ids, strict=True)
    return " ".join("<<unk>>" if number == UNKNOWN else piece for piece, number in pieces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--average", type=int, help="average the last N checkpoints")
    parser.add_argument("--last", action="store_true", help="the last checkpoint, not the best")
    parser.add_argument("--split", default="test")
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    run = TrainedRun.open(
        options.run,
        task="translate",
        which="last" if options.last else "best",
        average=options.average,
    )
    pairs = list(Corpus.open(run.recipe.data).records(options.split))
    decoding = DecodingOptions(beam=options.beam, length_penalty="mean", ratio=0.0, extra=200)
    outputs = [
        join_pieces(texts[0].text)
        for texts in translate_texts(run, (pair["source"] for pair in pairs), decoding)
    ]
    references = [join_pieces(pair["target"]) for pair in pairs]
    hidden = [join_pieces(hide_unknown(run.tokenizer, pair["target"])) for pair in pairs]
    plain = {"tokenize": "none", "smooth_method": "none", "force": True}
    tokenised = BLEU(**plain).corpus_score(outputs, [hidden])
    result = {
        "step": run.step,
        "average": options.average,
        "tokenised": round(tokenised.score, 2),
        "precisions": [round(value, 1) for value in tokenised.precisions],
        "brevity_penalty": round(tokenised.bp, 3),
        "lengths": [tokenised.sys_len, tokenised.ref_len],
        "all_words": round(BLEU(**plain).corpus_score(outputs, [references]).score, 2),
        "13a": round(BLEU().corpus_score(outputs, [references]).score, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
