# %% [markdown]
# # A table in a scikit-learn pipeline
#
# `TabularTransformerClassifier` is a scikit-learn estimator. It reads the columns of a data frame
# as they are: numbers, categories, missing values. So it needs no encoder, and it can stand in a
# pipeline, a search or a cross-validation.

# %%
import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from addnorm import TabularTransformerClassifier

# %% [markdown]
# ## A table with a category, missing values and a date

# %%
rng = np.random.default_rng(0)
size = 400
df = pd.DataFrame(
    {
        "age": rng.integers(18, 80, size),
        "city": rng.choice(["Rome", "Oslo", None], size),
        "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 2000, size), "D"),
    }
)
y = np.where((df["age"] > 40) & (df["city"] == "Rome"), "yes", "no")
print("missing values:", df.isna().sum().to_dict())

# %% [markdown]
# ## Pipeline and search
#
# The first step adds a column; the search chooses the wiring by name.


# %%
def add_decade(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one more column."""
    return table.assign(decade=table["age"] // 10)


model = TabularTransformerClassifier(
    model="ft_transformer", dim=16, depth=2, heads=2, max_epochs=8, random_state=0
)
pipeline = make_pipeline(FunctionTransformer(add_decade), model)
search = GridSearchCV(
    pipeline,
    {"tabulartransformerclassifier__wiring": ["pre_ln", "rezero"]},
    cv=2,
    scoring="accuracy",
)
train, test, y_train, y_test = train_test_split(df, y, random_state=0, stratify=y)
search.fit(train, y_train)
print("wirings tried:", len(search.cv_results_["params"]))
print(f"accuracy on held-out rows: {search.score(test, y_test):.1f}")
print("classes:", search.classes_.tolist())

# %% [markdown]
# For real data leave out `model`, `dim`, `depth`, `heads` and `max_epochs`: the defaults are sizes
# for real tables. See the guide to [tables](../docs/guides/tables.md).
