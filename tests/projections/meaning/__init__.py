"""Do queries mean in a projection what they mean in Postgres? Its own answer over the same rows decides."""
