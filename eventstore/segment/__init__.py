"""How do rows lie in files: encoding, order, content hashes."""
