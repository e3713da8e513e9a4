"""Rows of tables: their ids, where they lie in memory, and when they come and go.

A table of known size has a place for each row, which takes memory once it is written. A growing table takes any 64-bit
id: its row is created once the id is admitted, and may be evicted.

Read `rows` (ids and values as they are passed around), `index` (the row of an id), `growing_array` (arrays that grow,
in memory or in a file), `row_arrays` (values and state by row, rows brought up to date when they are used, and captures
of rows) and `storage` (`RowStorage`: all of it together, with admission and eviction).
"""
