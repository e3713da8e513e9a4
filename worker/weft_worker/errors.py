"""What the worker raises beside the engine's errors.

WorkerError
+-- TaskError       what the server sent cannot be run here: programs, data or store do not fit together
+-- BindError       a program cannot be bound to these dimensions; `node` says where
+-- ValueMismatchError  an array is not of the type that the plan says
+-- DeviceError     the device that was asked for is not there, or failed
+-- StoppedError    the run was told to stop; nobody is to blame
"""

from __future__ import annotations


class WorkerError(Exception):
    """A run cannot go on."""


class TaskError(WorkerError):
    """What the server sent cannot be run on this worker; the message names the field and both sides."""


class BindError(WorkerError):
    """A program cannot be bound to dimensions. `node` is the node's or value's name."""

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message)
        self.node = node


class ValueMismatchError(WorkerError):
    """An array that a kernel, the store or the data gave is not of the type that the plan has for it."""


class DeviceError(WorkerError):
    """A device that was asked for is not there, or failed."""


class StoppedError(WorkerError):
    """The run was told to stop."""
