"""What the tests share: servers, ledgers, rows, waiting, Spark."""
