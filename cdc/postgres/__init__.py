"""The only code that talks to a source Postgres: connections, slots, publications, descriptions, snapshots."""
