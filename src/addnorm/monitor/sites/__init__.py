"""Sites of any model: found by the doctor, measured by a recorder."""
