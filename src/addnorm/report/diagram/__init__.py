"""TODO report/diagram."""
