"""Studies: what to compare, the cells it takes, the run folders that hold them, and the runner that trains them."""
