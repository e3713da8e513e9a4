"""The networked store: its face, its mind, and a link to each shard."""
