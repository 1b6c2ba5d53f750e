"""Does each value mean in Spark what it means in Postgres: types that are only texts, digits that are not kept."""
