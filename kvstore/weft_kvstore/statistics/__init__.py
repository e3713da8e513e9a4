"""What is counted of links, jobs and shards."""
