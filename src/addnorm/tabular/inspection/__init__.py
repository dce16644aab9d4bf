"""Inspection of fitted estimators: calibration, feature importances and explanations."""
