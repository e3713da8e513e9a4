"""What client and shard say to each other: messages, their bytes, and the queue at a link's sending end."""
