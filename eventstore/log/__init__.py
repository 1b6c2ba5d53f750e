"""How is the log written, read and followed?"""
