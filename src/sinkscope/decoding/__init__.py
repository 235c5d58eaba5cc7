"""Generation, one file per official loop; each yields its steps, and `generate` drives, records and collects them."""
