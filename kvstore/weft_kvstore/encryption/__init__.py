"""CURVE: encrypted links of ZeroMQ, on which a shard lets in only those whose keys it knows.

Read `curve_keys` (a pair of keys, and the keys of a link), `key_files` (how pairs are made, written and read) and
`curve_authenticator` (whom a shard lets in).
"""
