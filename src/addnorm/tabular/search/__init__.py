"""Search for the hyperparameters of the tabular estimators."""
