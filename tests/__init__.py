"""Tests, named after the guarantee they prove. Servers are real; fixtures are in ``tests/fixtures``."""
