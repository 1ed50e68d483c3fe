"""One file per schema. A released one is never edited."""
