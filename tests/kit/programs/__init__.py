"""Programs that tests start in processes of their own."""
