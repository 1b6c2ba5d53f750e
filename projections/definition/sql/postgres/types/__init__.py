"""Types of Postgres, values of them, casts, intervals and time zones."""
