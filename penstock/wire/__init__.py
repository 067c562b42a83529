"""What crosses the wire, as types that both ends encode and decode. No I/O."""
