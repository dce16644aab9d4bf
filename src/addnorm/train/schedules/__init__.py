"""Learning-rate schedules, chosen by call string."""
