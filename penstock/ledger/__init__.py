"""The ledger: the one owner of state."""
