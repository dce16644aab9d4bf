"""Synthetic rows of every claim with a known verdict."""

SEEDS = range(4)
NORMS = "pre_ln"


def spread(seed, noise):
    """Return the noise of a seed; its mean over seeds is zero."""
    return noise * (seed - 1.5)


def profile(name, arm, places, value, **where):
    """Return a row for each seed and x value.

    Args:
        places: the field and its values
        value: function of the field's value and the seed
    """
    field, values = places
    return [
        {"name": name, "arm": arm, field: place, "seed": seed, "value": value(place, seed), **where}
        for seed in SEEDS
        for place in values
    ]


PROGRESS_BY_LR = {1e-4: 0.5, 1e-3: 1.0, 1e-2: 0.5}
"""Learning rates, and the fraction of the progress reached with each."""


def cells(progress, *, noise=0.0, name="progress", study="deep", depth=12, warmup=0, lr=None):
    """Return a row for each arm, learning rate and seed.

    Args:
        progress: value by arm
        lr: a single learning rate instead of the sweep
    """
    fractions = PROGRESS_BY_LR if lr is None else {lr: 1.0}
    return [
        {
            "name": name, "study": study, "arm": arm, "depth": depth, "warmup": warmup, "lr": rate,
            "seed": seed, "state": "trained",
            "value": value * (share if name == "progress" else 1.0) + spread(seed, noise),
        }
        for arm, value in progress.items()
        for rate, share in fractions.items()
        for seed in SEEDS
    ]  # fmt: skip


# Claims at initialization. good: whether the rows support the claim. noise: of single seeds.


def last_gradient(good, noise):
    for arm, power in (("post_ln", 0.0 if good else 0.5), ("pre_ln", -0.5)):
        yield from profile(
            "gradient",
            arm,
            ("depth", (4, 16, 64)),
            lambda d, s, p=power: d ** (p + spread(s, noise)),
        )


def gradient_product(good, noise):
    for kind in ("encoder", "decoder"):
        for wiring, rate in (("post_ln", -0.2 if good else 0.1), ("pre_ln", 0.01)):
            yield from profile(
                "ratio",
                f"{wiring} {kind}",
                ("depth", (6, 12, 24)),
                lambda d, s, r=rate: 2.718281828 ** (d * (r + spread(s, noise))),
            )


def stream_growth(good, noise):
    arm, slope = "pre_ln, the paper's layers", 1.0 if good else 3.0
    yield from profile(
        "square", arm, ("layer", range(1, 9)), lambda n, s: 1 + n * (slope + spread(s, noise))
    )


def ln_scaling_limits_growth(good, noise):
    for arm, power in (("pre_ln", 1.5), ("ln_scaling", 0.5 if good else 1.6)):
        yield from profile(
            "square",
            arm,
            ("layer", range(1, 33)),
            lambda n, s, p=power: 1 + n ** (p + 2 * spread(s, noise) * (p == 1.5)),
        )
        yield from profile("share", arm, ("layer", range(1, 33)), lambda n, s: 1 / n)


def residual_dependency(good, noise):
    for arm, power in (("post_ln", 0.0), ("pre_ln", -1.0 if good else 0.0)):
        yield from profile(
            "dependency",
            arm,
            ("number", (2, 4, 8)),
            lambda n, s, p=power: (n + 1) ** (p + spread(s, noise)),
        )


def one_update(good, noise):
    steep, flat = ("post_ln", "pre_ln") if good else ("pre_ln", "post_ln")
    for arm, power in ((steep, 1.0), (flat, 0.1)):
        yield from profile(
            "change",
            arm,
            ("depth", (3, 12, 48)),
            lambda d, s, p=power: d ** (p + 2 * spread(s, noise) * (p == 1)),
        )


def rezero_identity(good, noise):
    depths = ("depth", (3, 12))
    yield from profile("error", "rezero", depths, lambda d, s: 0.0)
    for arm in ("rezero", "pre_ln", "post_ln"):
        for which in ("smallest", "largest"):
            exact = arm == "rezero" and (good or which == "largest")
            value = 1.0 if exact else 0.01
            yield from profile(
                "singular", arm, depths, lambda d, s, v=value: v + spread(s, noise), which=which
            )
        yield from profile("kept", arm, depths, lambda d, s: 0.1)


def layer_norm_length(good, noise):
    dims = ("dim", (16, 256))
    yield from profile("sum", "layer", dims, lambda d, s: 1e-7)
    yield from profile(
        "square", "layer", dims, lambda d, s: d ** ((1.0 if good else 0.5) + spread(s, noise))
    )


def epsilon_outside(good, noise):
    for mode, power in (("inside", 0.5), ("outside", 1.0 if good else 0.5)):
        yield from profile(
            "gain",
            f"eps {mode}",
            ("eps", (1e-3, 1e-5)),
            lambda e, s, p=power: e**-p * (1 + spread(s, noise)),
        )


def rank_collapse(good, noise):
    for kind in ("attention alone", "both kinds"):
        for skip, rate in (("no skip", 0.1), ("with skips", 0.8 if good else 0.01)):
            for name, sign in (("cosine", -1), ("apart", 1)):
                yield from profile(
                    name,
                    f"{kind}, {skip}",
                    ("layer", (1, 2, 3, 4, 6)),
                    lambda n, s, r=rate, k=sign: (k < 0) + k * (r + spread(s, noise) / 6.1) ** n,
                )


def position_lost(good, noise):
    for arm, value in (("no skip", 0.04 if good else 0.5), ("with skips", 0.9)):
        yield from profile(
            "right",
            arm,
            ("layer", (0, 1)),
            lambda n, s, v=value: v + spread(s, noise),
            chance=1 / 32,
        )


def batch_statistics(good, noise):
    for arm, far in (("batch", 0.5 if good else 0.03), ("layer", 0.02)):
        yield from profile(
            "drift",
            arm,
            ("length", (32, 256)),
            lambda n, s, f=far: (0.02 if n == 32 else f) + spread(s, noise),
        )


def third_position(good, noise):
    slopes = {("res_post", "usual"): 1.0, ("res_post", "times 3"): 1.0 if good else 9.0}
    slopes |= {("post_ln", "usual"): 0.0, ("post_ln", "times 3"): 0.0}
    slopes |= {("pre_ln", "usual"): 0.5, ("pre_ln", "times 3"): 4.5}
    for (arm, matrices), slope in slopes.items():
        moved = noise * (arm == "res_post" and matrices == "usual")
        yield from profile(
            "variance",
            arm,
            ("site", (1, 2, 3)),
            lambda n, s, v=slope, e=moved: 1 + n * (v + spread(s, e)),
            matrices=matrices,
        )


def adafactor_slows_rezero(good, noise):
    for arm, value in (("adafactor", 1e-3 if good else 0.05), ("adamw", 0.1)):
        for lr in (1e-3, 1e-2):
            yield from profile(
                "largest",
                arm,
                ("step", (50, 100)),
                lambda n, s, v=value: v * 10 ** spread(s, noise),
                lr=lr,
            )


def deep_layers_are_removable(good, noise):
    yield from cells({"pre_ln": 0.9, "post_ln": 0.9}, study="lm")
    for layer in range(1, 9):
        harm = {"pre_ln": (9 - layer) if good else layer, "post_ln": 4}
        for row in cells(harm, name="harm", study="lm"):
            grown = row["value"] * (1 + 2 * spread(row["seed"], noise))
            yield {**row, "layer": layer, "value": grown}


# Claims by training.


def remedy(arm):
    """The arm trains and Post-LN does not; if the claim is wrong, neither trains."""

    def made(good, noise):
        return cells({arm: 0.9 if good else 0.1, "pre_ln": 0.9, "post_ln": 0.05}, noise=noise)

    return made


def false_pre_ln_is_post_ln(good, noise):
    return cells(
        {"pre_ln": 0.9, "post_ln": 0.05, "false_pre_ln": 0.05 if good else 0.9}, noise=noise
    )


def deep_post_ln_fails(good, noise):
    """Rows with and without warm-up; the better setting counts."""
    yield from cells({"pre_ln": 0.9, "post_ln": 0.05}, noise=noise)
    yield from cells({"post_ln": 0.1 if good else 0.8}, noise=noise, warmup=40)


def deep_post_ln_fails_on_multi30k(good, noise):
    yield from cells({"pre_ln": 0.9, "post_ln": 0.05, "b2t": 0.7 if good else 0.1}, noise=noise)


def rezero_is_faster(good, noise):
    yield from cells({"rezero": 0.9, "pre_ln": 0.9})
    rates = {"rezero": 0.02 if good else 0.01, "pre_ln": 0.015}
    for arm, rate in rates.items():
        for step in (20, 40, 60, 80):
            for row in cells({arm: min(1.0, step * rate)}, name="valid"):
                grown = row["value"] * (1 + spread(row["seed"], noise if arm == "rezero" else 0))
                yield {**row, "step": step, "steps": 80, "value": max(0.0, grown)}


def six_layers_are_enough(good, noise):
    yield from cells({"pre_ln": 0.8 if good else 0.4}, depth=6, noise=noise)
    yield from cells({"pre_ln": 0.8})


def post_ln_needs_warmup(good, noise):
    for arm, cold in (("post_ln", 0.2 if good else 0.9), ("pre_ln", 0.9)):
        yield from cells({arm: cold}, noise=noise, study=arm, depth=6)
        yield from cells({arm: 0.9}, study=arm, depth=6, warmup=40)


def shallow_post_ln_is_as_good(good, noise):
    yield from cells({"post_ln": 0.9 if good else 0.6}, noise=noise, study="shallow")
    yield from cells({"pre_ln": 0.9}, study="shallow")


def radam_replaces_warmup(good, noise):
    for study, value in (("adamw, warm-up", 0.9), ("adamw, none", 0.2)):
        yield from cells({"post_ln": value}, study=study)
    yield from cells({"post_ln": 0.9 if good else 0.2}, study="radam, none", noise=noise)


def rms_norm_equals_layer_norm(good, noise):
    yield from cells({"pre_ln": 0.9}, study="norms")
    yield from cells({"pre_ln rms": 0.9 if good else 0.5}, study="norms", noise=noise)
    yield from cells({"pre_ln": 100.0, "pre_ln rms": 120.0}, study="clock", name="speed", lr=1e-3)


def gain_and_bias_overfit(good, noise):
    bare = "pre_ln layer(affine=False)"
    for study in ("all", "few"):
        yield from cells({"pre_ln": 0.9}, study=study)
        yield from cells({bare: 0.9}, study=study, noise=noise)
        yield from cells({"pre_ln": 0.1, bare: 0.1}, study=study, name="train_loss")
        yield from cells({"pre_ln": 1.0, bare: 0.5 if good else 2.0}, study=study, name="loss")


def fix_norm_helps_little_data(good, noise):
    yield from cells({"pre_ln": 0.8, "pre_ln scale": 0.8}, study="usual word vectors")
    fixed = {"pre_ln": 0.9, "pre_ln scale": 0.9 if good else 0.7}
    yield from cells(fixed, study="fixnorm", noise=noise)


def first_norm(*tables):
    """Rows with and without the first norm."""

    def made(good, noise):
        for table in tables:
            yield from cells({"pre_ln(first_norm=False)": 0.9}, study=table)
            yield from cells({"pre_ln": 0.7 if good else 0.9}, study=table, noise=noise)

    return made


def rms_norm_equals_layer_norm_on_wikitext(good, noise):
    yield from cells({"pre_ln": 0.9}, study="text")
    yield from cells({"pre_ln rms": 0.9 if good else 0.5}, study="text", noise=noise)


def attention_resists_corrupted_cells(good, noise):
    for table in ("views", "breast cancer"):
        for model, keeps in (("Transformer", 0.9 if good else 0.7), ("MLP", 0.8)):
            study = f"{table}, {model}"
            yield from cells({"pre_ln": 0.9}, study=study)
            for what in ("missing", "noise"):
                for share in (0.0, 0.2, 0.6):
                    value = 0.8 * (keeps if share else 1)
                    moved = noise * (model == "MLP" and share > 0)
                    for row in cells({"pre_ln": value}, study=study, name="accuracy", noise=moved):
                        yield {**row, "what": what, "share": share}


def statistics_gradients_matter(good, noise):
    arms = {"pre_ln layer(affine=False)": 0.9, "pre_ln none": 0.3}
    yield from cells(arms, study="norms")
    yield from cells({"pre_ln detach": 0.4 if good else 0.95}, study="norms", noise=noise)


def better(arm, study):
    """Rows of an arm and of LayerNorm."""

    def made(good, noise):
        yield from cells({"pre_ln": 0.8}, study=study)
        yield from cells({arm: 0.9 if good else 0.7}, study=study, noise=noise)

    return made


def dyt_helps_small_data(good, noise):
    for study, value in (("few", 0.9 if good else 0.7), ("all", 0.7)):
        yield from cells({"pre_ln": 0.8}, study=study)
        yield from cells({"pre_ln dyt": value}, study=study, noise=noise)


def batch_norm_is_worse(good, noise):
    yield from cells({"pre_ln": 0.9}, study="large batches")
    yield from cells({"pre_ln": 0.9}, study="small batches")
    yield from cells({"pre_ln batch": 0.7}, study="large batches", noise=noise)
    yield from cells({"pre_ln batch": 0.1 if good else 0.85}, study="small batches")


def rate_transfers(good, noise):
    """The large model is best at the rate of the small one, or at half of it."""
    rates = (1e-4, 1e-3, 2e-3, 1e-2)
    groups = {
        ("standard", 4): 2e-3,
        ("standard", 16): 1e-3,
        ("mup", 16): 2e-3,
        ("completep", 16): 2e-3 if good else 1e-3,
    }
    for (study, depth), best in groups.items():
        for rate in rates:
            distance = abs(rates.index(rate) - rates.index(best))
            for seed in SEEDS:
                yield {
                    "name": "progress", "study": study, "arm": f"wiring dim={depth}",
                    "depth": depth, "warmup": 10, "lr": rate, "seed": seed, "state": "trained",
                    "value": 1.0 - 0.3 * distance + spread(seed, noise) * (distance == 0),
                }  # fmt: skip


ROWS = {
    **{
        f"rate_transfers_with_{wiring}": rate_transfers
        for wiring in ("pre_ln", "post_ln", "deepnorm")
    },
    "post_ln_needs_warmup_on_multi30k": post_ln_needs_warmup,
    "ft_transformer_first_norm": first_norm("waves", "digits"),
    "ft_transformer_first_norm_on_california": first_norm("table"),
    "ada_norm_beats_layer_norm": better("pre_ln ada", "norms"),
    "scale_norm_helps_little_data": better("pre_ln scale", "few"),
    **{
        f"{arm}_trains_deep": remedy(arm)
        for arm in ("admin", "b2t", "dlcl", "deepnorm", "rezero", "t_fixup")
    },
    **{
        made.__name__: made
        for made in (
            *(last_gradient, gradient_product, stream_growth, residual_dependency, one_update),
            *(rezero_identity, layer_norm_length, epsilon_outside, rank_collapse, position_lost),
            *(batch_statistics, third_position, adafactor_slows_rezero, deep_layers_are_removable),
            *(false_pre_ln_is_post_ln, deep_post_ln_fails, rezero_is_faster),
            *(six_layers_are_enough, post_ln_needs_warmup, shallow_post_ln_is_as_good),
            *(radam_replaces_warmup, rms_norm_equals_layer_norm, gain_and_bias_overfit),
            *(fix_norm_helps_little_data, attention_resists_corrupted_cells),
            *(deep_post_ln_fails_on_multi30k, rms_norm_equals_layer_norm_on_wikitext),
            ln_scaling_limits_growth,
            *(statistics_gradients_matter, dyt_helps_small_data, batch_norm_is_worse),
        )
    },
}
"""By claim: (good, noise) -> rows."""
