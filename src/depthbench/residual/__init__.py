"""Residual designs: the protocol, the ten built-in ones (one file each), and how a user's own is found and checked."""
