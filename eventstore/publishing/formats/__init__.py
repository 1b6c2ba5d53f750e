"""What does a destination get of a row? Values only: Arrow tables of rows in, Arrow tables of records out."""
