"""From runs to a verdict a person can read, or a script. Knows no torch."""
