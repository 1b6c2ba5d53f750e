"""Steps that compute the keys which changes affect, and no others."""
