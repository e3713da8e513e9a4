"""The kernels room: what each operator and each update rule does to arrays."""
