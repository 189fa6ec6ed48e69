"""Do the late layers do anything? Depth states and surgery on models, and one file for each diagnostic."""
