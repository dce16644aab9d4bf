"""Options of attention, one per module: gates, values of other layers, exclusive attention."""
