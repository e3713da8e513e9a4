"""Values at places between the elements of an image: by grids, boxes, moved windows, and along a dimension."""
