"""Arrays and their bytes: ranges, shelves, zeros, exact sums."""
