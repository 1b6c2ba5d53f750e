"""From tailrace.toml and the environment to settings."""
