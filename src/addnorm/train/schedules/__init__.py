"""TODO train/schedules."""
