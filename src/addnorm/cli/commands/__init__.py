"""Commands of `addnorm`, one file per verb; `cli/main.py` registers them."""
