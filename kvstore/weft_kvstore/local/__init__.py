"""The store of one process: the cores of a shard and of its clients, without sockets between them."""
