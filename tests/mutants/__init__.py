"""``make mutants``: would the fast tests notice if one line of what a promise hangs on were wrong?

A mutant is the project with one small change. Its module's tests are run in a private copy of the tree; a mutant that
passes them survives, and is either a test that is missing or equivalent: nobody can tell it from the original
(``equivalents.toml``). Mutants are drawn with a seed, evenly over the areas of ``table.py``.
"""
