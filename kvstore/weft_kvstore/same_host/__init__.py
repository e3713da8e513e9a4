"""Payloads between processes of one host pass through memory that the sender writes and the receiver reads; messages
stay on ZeroMQ.

A client process has one *arena*, and a shard has memory of its own. Both are sealed anonymous memory: arrays (gradients
that the client gives out; the shard's values), and a *staging area*, to which other payloads are copied. They give each
other the descriptors at a Unix socket whose name the shard says in its Welcome: the *listener*. From then on a message
says where in its sender's memory its payload is.

Read `memory` (a process's own memory and another's, and where a frame's bytes are; pure), `client_arrays` (what a
client gives out) and `handover` (how the two get each other's memory).
"""
