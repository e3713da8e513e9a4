"""CURVE: ZeroMQ's encrypted links. A shard accepts only clients whose keys it knows.

Read `curve_keys` (a pair of keys, and the keys of a link), `key_files` (making, writing and reading pairs) and
`curve_authenticator` (which clients a shard accepts).
"""
