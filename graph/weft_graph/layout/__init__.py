"""Where the values of a program lie in one block of memory."""
