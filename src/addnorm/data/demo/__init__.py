"""Demo corpora, generated from installed packages without any download."""
