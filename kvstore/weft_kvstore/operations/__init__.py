"""What a caller begins: calls checked, pushes, pulls, barriers, commits and changes on their way; no sockets."""
