"""The graph room: what a user submits, and what the converter makes of it. It imports no other room."""
