"""What everything else stands on: errors, checks, files, locks, registries, texts, and the rule that says what a sink is."""
