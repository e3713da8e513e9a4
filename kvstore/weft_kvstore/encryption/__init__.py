"""CURVE: links of ZeroMQ that nobody reads or writes who has no key for them."""
