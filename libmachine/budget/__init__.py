"""Money: one ledger for every call that can cost something, and engines that are billed to it."""
