"""Studies: grids of cells, resumable, and the statistics that compare them."""
