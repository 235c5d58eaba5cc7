"""What a sink holds: measures of the network's inside along a run, and interventions on it."""
