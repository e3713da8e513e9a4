"""Cases of operators that read between elements, move blocks about, or transform signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, distinct, floats, integers

F32 = np.float32


def _places(count: int, size: int, scale: float, attributes: dict[str, Any]) -> Any:
    """Where results lie, by ONNX's formulas: of every mode but crops."""
    x = np.arange(count)
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (size - 1) / max(scale * size - 1, 1e-9)
    shifted = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return shifted + size / 2 * (1 - count / (scale * size))
    return shifted


def _tent(t: Any, of: Any = np) -> Any:
    return of.maximum(1 - of.abs(t), 0)


def _keys(t: Any, of: Any = np, a: float = -0.75) -> Any:
    t = of.abs(t)
    return of.where(t <= 1, (a + 2) * t**3 - (a + 3) * t**2 + 1, of.where(t < 2, a * (t**3 - 5 * t**2 + 8 * t - 4), 0))


def _matrix(count: int, size: int, scale: float, attributes: dict[str, Any]) -> Any:
    """(count, size): the weights of all elements; the edges stand for what is beyond them."""
    places = _places(count, size, scale, attributes)[:, None]
    mode = attributes.get("mode", "nearest")
    if mode == "nearest":
        rounding = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }[attributes.get("nearest_mode", "round_prefer_floor")]
        return (np.clip(rounding(places), 0, size - 1) == np.arange(size)) * 1.0
    reach = 12
    elements = np.arange(-reach, size + reach)
    stretch = max(1.0, 1 / scale) if attributes.get("antialias") else 1.0
    weights = (_tent if mode == "linear" else _keys)((elements - places) / stretch)
    if attributes.get("exclude_outside"):
        weights = weights * ((elements >= 0) & (elements < size))
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ (np.clip(elements, 0, size - 1)[:, None] == np.arange(size))


_COORDINATES = "coordinate_transformation_mode"
_RESIZES: Sequence[tuple[str, tuple[int, ...], tuple[float, ...] | tuple[int, ...], dict[str, Any]]] = (
    ("nearest_twice", (2, 1, 3, 2), (2, 1, 6, 4), {"coordinate_transformation_mode": "asymmetric"}),
    ("nearest_down", (1, 2, 7, 5), (1, 2, 3, 2), {"nearest_mode": "floor"}),
    ("nearest_ceil", (1, 1, 3, 4), (1, 1, 7, 9), {"nearest_mode": "round_prefer_ceil"}),
    ("linear_up", (1, 2, 3, 4), (1, 2, 7, 5), {"mode": "linear"}),
    ("linear_down", (1, 1, 7, 6), (1, 1, 3, 4), {"mode": "linear"}),
    ("linear_one", (1, 2, 1, 1), (1, 2, 4, 3), {"mode": "linear"}),
    ("linear_corners", (1, 1, 3, 4), (1, 1, 6, 7), {"mode": "linear", _COORDINATES: "align_corners"}),
    ("linear_smooth", (1, 1, 9, 7), (1, 1, 4, 3), {"mode": "linear", "antialias": 1}),
    ("cubic_up", (1, 1, 4, 3), (1, 1, 7, 8), {"mode": "cubic"}),
    ("cubic_inside", (1, 1, 4, 5), (1, 1, 7, 3), {"mode": "cubic", "exclude_outside": 1}),
    ("cubic_smooth", (1, 1, 9, 8), (1, 1, 3, 4), {"mode": "cubic", "antialias": 1, "exclude_outside": 1}),
    ("volume", (1, 1, 2, 3, 2), (1, 1, 4, 3, 5), {"mode": "linear"}),
    ("empty", (0, 2, 3, 3), (0, 2, 5, 2), {"mode": "linear"}),
    ("symmetric", (1, 1, 5, 6), (1.0, 1.0, 0.7, 1.3), {"mode": "linear", _COORDINATES: "half_pixel_symmetric"}),
    ("by_scales", (1, 2, 3, 4), (1.0, 1.0, 2.0, 1.5), {"mode": "linear"}),
)  # fmt: skip


def resize_cases() -> list[GradientCase]:
    cases = []
    for name, shape, target, attributes in _RESIZES:
        is_scaled = isinstance(target[0], float)
        counts = [int(F32(a) * F32(b)) for a, b in zip(shape, target, strict=True)] if is_scaled else target
        scales = target if is_scaled else [b / a if a else 1.0 for a, b in zip(shape, target, strict=True)]

        def reference(x: Any, c: Any = counts, s: Any = scales, a: dict[str, Any] = attributes) -> Any:
            for axis in range(2, x.ndim):
                size = x.shape[axis]
                x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ _matrix(int(c[axis]), size, s[axis], a).T, -1, axis)
            return x

        lists = (np.array(target, dtype=F32), None) if is_scaled else (None, integers(*(int(n) for n in target)))
        cases.append(GradientCase(name, "Resize", (floats(*shape), None, *lists), reference, attributes))

    def cropped(x: Any) -> Any:
        rows = 0.25 * 3 + np.arange(3) * (1.25 - 0.25) * 3 / 2
        weights = _tent(np.arange(4) - rows[:, None]) * ((rows >= 0) & (rows <= 3))[:, None]
        return jnp.einsum("ij,abjc->abic", weights, x) + np.where(rows > 3, 2.0, 0.0)[:, None]

    crop = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 2.0,
        "axes": (2,),
    }
    region = np.array([0.25, 1.25], dtype=F32)
    inputs = (floats(1, 2, 4, 3), region, None, integers(3))
    cases.append(GradientCase("crop", "Resize", inputs, cropped, crop))
    return cases


def _thrown_back(x: Any, low: float, high: float) -> Any:
    span = high - low
    rest = jnp.mod(x - low, 2 * span)
    return low + jnp.minimum(rest, 2 * span - rest)


def _sample(x: Any, grid: Any, attributes: dict[str, Any]) -> Any:
    """GridSample written point by point over all dimensions at once."""
    aligned, padding = attributes.get("align_corners", 0), attributes.get("padding_mode", "zeros")
    mode, shape = attributes.get("mode", "linear"), x.shape[2:]
    weights: Any = jnp.ones(grid.shape[:-1])
    for axis, size in enumerate(shape):
        at = grid[..., len(shape) - 1 - axis]
        place = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
        bounds = (0, size - 1) if aligned else (-0.5, size - 0.5)
        elements = jnp.arange(size)
        if mode == "cubic":
            wide = jnp.arange(-3 * size, 4 * size)
            real = wide
            if padding == "border":
                real = jnp.clip(wide, 0, size - 1)
            elif padding == "reflection":
                real = jnp.clip(_thrown_back(wide, *bounds), 0, size - 1)
            along = _keys(place[..., None] - wide, jnp) @ (real[:, None] == elements).astype(float)
        else:
            if padding == "reflection":
                place = _thrown_back(place, *bounds)
            if padding != "zeros":
                place = jnp.clip(place, 0, size - 1)
            along = (
                (jnp.rint(place)[..., None] == elements).astype(float)
                if mode == "nearest"
                else _tent(place[..., None] - elements, jnp)
            )
        weights = weights[..., None] * along.reshape(*grid.shape[:-1], *(1,) * axis, size)
    letters = "xyz"[: len(shape)]
    return jnp.einsum(f"nc{letters},n...{letters}->nc...", x, weights)


_GRIDS: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = (
    ("linear", (2, 3, 4, 5), (2, 3, 2), {}),
    ("corners", (1, 2, 4, 5), (1, 3, 2), {"align_corners": 1}),
    ("border", (1, 2, 3, 4), (1, 4, 3), {"padding_mode": "border"}),
    ("reflection", (1, 2, 3, 4), (1, 4, 3), {"padding_mode": "reflection"}),
    ("reflection_corners", (1, 1, 3, 4), (1, 4, 3), {"padding_mode": "reflection", "align_corners": 1}),
    ("cubic", (1, 2, 4, 5), (1, 3, 2), {"mode": "cubic"}),
    ("cubic_border", (1, 1, 4, 3), (1, 3, 2), {"mode": "cubic", "padding_mode": "border"}),
    ("cubic_reflection", (1, 1, 4, 3), (1, 3, 2), {"mode": "cubic", "padding_mode": "reflection", "align_corners": 1}),
    ("volume", (1, 2, 3, 2, 4), (1, 2, 2, 3), {}),
    ("line", (2, 2, 6), (2, 5), {}),
    ("nearest", (1, 2, 4, 5), (1, 3, 3), {"mode": "nearest"}),
    ("empty", (0, 2, 4, 5), (0, 3, 3), {}),
)


def grid_cases() -> list[GradientCase]:
    cases = []
    for name, shape, places, attributes in _GRIDS:

        def reference(x: Any, grid: Any, a: dict[str, Any] = attributes) -> Any:
            return _sample(x, grid, a)

        grid = floats(*places, len(shape) - 2, low=-1.4, high=1.4, seed=5)
        cases.append(GradientCase(name, "GridSample", (floats(*shape), grid), reference, attributes))
    data, grid = floats(1, 2, 3, 3), floats(1, 2, 2, 2, low=-1, high=1)
    fixed = frozenset({1})
    cases.append(GradientCase("X_alone", "GridSample", (data, grid), lambda x: _sample(x, grid, {}), fixed=fixed))

    def affine(theta: Any, shape: Sequence[int] = (), aligned: bool = False) -> Any:
        axes = [
            jnp.linspace(-1, 1, size) if aligned and size > 1 else (2 * jnp.arange(size) + 1) / size - 1
            for size in shape
        ]
        places = jnp.stack([*jnp.meshgrid(*axes, indexing="ij")[::-1], jnp.ones(tuple(shape))], axis=-1)
        return jnp.einsum("...k,nrk->n...r", places, theta)

    for name, size, aligned in (
        ("plane", (2, 3, 4, 5), 0),
        ("corners", (1, 1, 3, 4), 1),
        ("volume", (2, 1, 2, 3, 2), 0),
    ):
        theta = floats(size[0], len(size) - 2, len(size) - 1)
        cases.append(
            GradientCase(
                name,
                "AffineGrid",
                (theta, integers(*size)),
                lambda theta, size=size, aligned=aligned: affine(theta, size[2:], bool(aligned)),
                {"align_corners": aligned},
            )
        )
    return cases


def _deformed(x: Any, w: Any, offset: Any, b: Any, mask: Any, attributes: dict[str, Any]) -> Any:
    """One place of the kernel after the other."""
    group, groups = attributes.get("group", 1), attributes.get("offset_group", 1)
    stride, dilation = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
    pads = attributes.get("pads", (0, 0, 0, 0))
    images, channels = x.shape[:2]
    high, wide = w.shape[2:]
    rows, columns = offset.shape[2:]
    moved = offset.reshape(images, groups, high * wide, 2, rows, columns)
    weighed = jnp.ones((images, groups, high * wide, rows, columns))
    weighed = weighed if mask is None else mask.reshape(weighed.shape)
    total: Any = 0.0
    by_group = x.reshape(images, groups, channels // groups, *x.shape[2:])
    for place in range(high * wide):
        i, j = divmod(place, wide)
        y = jnp.arange(rows)[:, None] * stride[0] - pads[0] + i * dilation[0] + moved[:, :, place, 0]
        z = jnp.arange(columns)[None] * stride[1] - pads[1] + j * dilation[1] + moved[:, :, place, 1]
        ways = _tent(y[..., None] - jnp.arange(x.shape[2]), jnp), _tent(z[..., None] - jnp.arange(x.shape[3]), jnp)
        value = jnp.einsum("ngcyz,ngijy,ngijz,ngij->ngcij", by_group, *ways, weighed[:, :, place])
        value = value.reshape(images, group, channels // group, rows, columns)
        kernel = w[:, :, i, j].reshape(group, -1, channels // group)
        total = total + jnp.einsum("ngcij,gfc->ngfij", value, kernel).reshape(images, -1, rows, columns)
    return total if b is None else total + b[:, None, None]


def deform_cases() -> list[GradientCase]:
    cases = []
    for name, attributes, groups, group, has_rest in (
        ("plain", {}, 1, 1, False),
        ("whole", {"pads": (1, 0, 1, 1), "strides": (2, 1), "dilations": (1, 2)}, 1, 1, True),
        ("groups", {"offset_group": 2, "group": 2}, 2, 2, True),
    ):
        pads, stride = attributes.get("pads", (0, 0, 0, 0)), attributes.get("strides", (1, 1))
        dilation = attributes.get("dilations", (1, 1))
        count = [
            (size + pads[axis] + pads[axis + 2] - dilation[axis] - 1) // stride[axis] + 1
            for axis, size in enumerate((4, 5))
        ]
        x, w = floats(2, 4, 4, 5), floats(4, 4 // group, 2, 2, seed=1)
        offset = floats(2, groups * 8, *count, low=-1.3, high=1.3, seed=2)
        rest = (floats(4, seed=3), floats(2, groups * 4, *count, seed=4)) if has_rest else ()

        def reference(x: Any, w: Any, o: Any, b: Any = None, m: Any = None, a: dict[str, Any] = attributes) -> Any:  # type: ignore[assignment]
            return _deformed(x, w, o, b, m, a)

        cases.append(GradientCase(name, "DeformConv", (x, w, offset, *rest), reference, attributes))  # type: ignore[arg-type]
    return cases


def roi_cases() -> list[GradientCase]:
    rois = np.array([[0.3, 0.7, 4.1, 3.3], [1.2, 0.1, 2.9, 4.4], [-2.0, -1.5, 7.3, 2.2]])
    images, fixed = integers(0, 1, 0), frozenset({1})
    data = floats(2, 2, 4, 5)
    attributes: dict[str, Any] = {"output_height": 2, "output_width": 3, "spatial_scale": 0.75}

    def shares(start: float, length: float, bins: int, count: int, size: int) -> Any:
        """(bins, points of a bin, 2, size): the share of each of both elements beside each point along one axis."""
        place = start + length / bins * (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / count)
        near = (place >= -1) & (place <= size)
        within = np.clip(place, 0, size - 1)
        low = np.minimum(np.floor(within), size - 2)
        pair = [
            (np.arange(size) == (low + at)[..., None]) * (near * share)[..., None]
            for at, share in ((0, 1 - within + low), (1, within - low))
        ]
        return np.stack(pair, axis=2)

    def aligned(x: Any, a: dict[str, Any]) -> Any:
        ratio, is_shifted = a.get("sampling_ratio", 0), "coordinate_transformation_mode" not in a
        boxes = []
        for (x1, y1, x2, y2), image in zip(rois * 0.75, images, strict=True):
            ways = []
            for low, high, bins, size in ((y1, y2, 2, 4), (x1, x2, 3, 5)):
                length = high - low if is_shifted else max(high - low, 1.0)
                start = low - 0.5 if is_shifted else low
                ways.append(shares(start, length, bins, ratio or int(np.ceil(length / bins)), size))
            points = jnp.einsum("cyz,ipay,jqbz->cijpqab", x[image], *ways)
            is_max = a.get("mode") == "max"
            boxes.append(points.max(axis=(3, 4, 5, 6)) if is_max else points.sum(axis=(5, 6)).mean(axis=(3, 4)))
        return jnp.stack(boxes)

    cases = []
    for name, more in (
        ("adaptive", {}),
        ("two", {"sampling_ratio": 2}),
        ("old", {"coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 1}),
        ("max", {"mode": "max", "sampling_ratio": 2}),
    ):
        whole = {**attributes, **more}
        cases.append(
            GradientCase(name, "RoiAlign", (data, rois, images), lambda x, a=whole: aligned(x, a), whole, fixed=fixed)
        )

    boxes = np.array([[0, 0, 0, 3, 3], [1, 1, 2, 4, 3], [0, 3, 3, 9, 9]], dtype=np.float64)

    def pooled(x: Any) -> Any:
        # Bins of rows and columns, written out: 4 x 4 in halves, 4 x 2 in halves, what is left of 7 x 7.
        bins = [
            (0, [(0, 2), (2, 4)], [(0, 2), (2, 4)]),
            (1, [(2, 3), (3, 4)], [(1, 3), (3, 5)]),
            (0, [(3, 4), None], [(3, 5), None]),
        ]
        return jnp.stack(
            [
                jnp.stack(
                    [
                        x[image][:, slice(*y), slice(*z)].max(axis=(1, 2)) if y and z else jnp.zeros(x.shape[1])
                        for y in rows
                        for z in columns
                    ],
                    axis=-1,
                ).reshape(-1, 2, 2)
                for image, rows, columns in bins
            ]
        )

    inputs = (distinct(2, 2, 4, 5), boxes)
    cases.append(GradientCase("bins", "MaxRoiPool", inputs, pooled, {"pooled_shape": (2, 2)}, fixed=fixed))
    return cases


def moving_cases() -> list[GradientCase]:
    """What goes elsewhere without being changed."""
    cases = []
    for mode in ("DCR", "CRD"):

        def to_space(x: Any, mode: str = mode) -> Any:
            n, c, h, w = x.shape
            labels = "nabchw->nchawb" if mode == "DCR" else "ncabhw->nchawb"
            split = (n, 2, 2, c // 4, h, w) if mode == "DCR" else (n, c // 4, 2, 2, h, w)
            return jnp.einsum(labels, x.reshape(split)).reshape(n, c // 4, 2 * h, 2 * w)

        def to_depth(x: Any, mode: str = mode) -> Any:
            n, c, h, w = x.shape
            labels = "nchawb->nabchw" if mode == "DCR" else "nchawb->ncabhw"
            return jnp.einsum(labels, x.reshape(n, c, h // 2, 2, w // 2, 2)).reshape(n, 4 * c, h // 2, w // 2)

        attributes: dict[str, Any] = {"blocksize": 2, "mode": mode}
        cases.append(GradientCase(mode, "DepthToSpace", (floats(2, 8, 2, 3),), to_space, attributes))
        cases.append(GradientCase(mode, "SpaceToDepth", (floats(2, 2, 4, 6),), to_depth, attributes))
    for name, shape, target, axes in (
        ("crop", (5, 4), (2, 3), None),
        ("pad", (2, 3), (5, 6), None),
        ("both", (2, 5, 4), (3, 7), (-2, 2)),
    ):

        def middle(x: Any, target: Any = target, axes: Any = axes) -> Any:
            for axis, length in zip(axes or range(x.ndim), target, strict=True):
                size = x.shape[axis]
                if length <= size:
                    x = jax.lax.slice_in_dim(x, (size - length) // 2, (size - length) // 2 + length, axis=axis % x.ndim)
                else:
                    wide = [(0, 0)] * x.ndim
                    wide[axis] = ((length - size) // 2, length - size - (length - size) // 2)
                    x = jnp.pad(x, wide)
            return x

        more = {} if axes is None else {"axes": axes}
        cases.append(GradientCase(name, "CenterCropPad", (floats(*shape), integers(*target)), middle, more))
    for name, image, block, more in (
        ("plain", (4, 5), (2, 2), {}),
        ("whole", (5, 4), (2, 2), {"strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (2, 1)}),
    ):

        def columns(image_: Any, block: Any = block, a: Any = more) -> Any:
            pads = a.get("pads", (0, 0, 0, 0))
            found = jax.lax.conv_general_dilated_patches(
                image_, block, a.get("strides", (1, 1)), ((pads[0], pads[2]), (pads[1], pads[3])),
                rhs_dilation=a.get("dilations", (1, 1)),
            )  # fmt: skip
            return found.reshape(*found.shape[:2], -1)

        def folded(x: Any, image: Any = image, columns: Any = columns) -> Any:
            return jax.linear_transpose(columns, jax.ShapeDtypeStruct((2, 3, *image), x.dtype))(x)[0]

        count = jax.eval_shape(columns, jax.ShapeDtypeStruct((2, 3, *image), F32)).shape
        inputs = (floats(*count), integers(*image), integers(*block))
        cases.append(GradientCase(name, "Col2Im", inputs, folded, more))
    return cases


def unpool_cases() -> list[GradientCase]:
    kernel = {"kernel_shape": (2, 2), "strides": (2, 2)}
    places = np.array([[[[5, 2], [8, 15]], [[17, 18], [29, 31]]]])

    def put(x: Any, size: int = 4) -> Any:
        spread = jnp.zeros(32).at[places.reshape(-1)].add(x.reshape(-1)).reshape(1, 2, 4, 4)
        return jnp.pad(spread, ((0, 0), (0, 0), (0, size - 4), (0, size - 4)))

    data, wide = floats(1, 2, 2, 2), integers(1, 2, 5, 5)
    return [
        GradientCase("plain", "MaxUnpool", (data, places), put, kernel),
        GradientCase("wider", "MaxUnpool", (data, places, wide), lambda x: put(x, 5), kernel),
    ]


def norm_cases() -> list[GradientCase]:
    cases = []
    for p in (1, 2, 3):
        for name, shape, more, reach in (
            ("plain", (2, 2, 4, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}, ((0, 0), (0, 0))),
            ("pads", (1, 1, 4, 5), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1)}, ((1, 1), (0, 1))),
            ("ceil", (1, 1, 6), {"kernel_shape": (3,), "strides": (2,), "ceil_mode": 1}, ((0, 1),)),
        ):

            def pooled(x: Any, p: int = p, a: Any = more, reach: Any = reach) -> Any:
                rank = len(reach)
                strides = (1, 1, *a.get("strides", (1,) * rank))
                window = (1, 1, *a["kernel_shape"])
                total = jax.lax.reduce_window(
                    jnp.abs(x) ** p, 0.0, jax.lax.add, window, strides, ((0, 0), (0, 0), *reach)
                )
                return total ** (1 / p)

            cases.append(GradientCase(f"{name}{p}", "LpPool", (floats(*shape),), pooled, {**more, "p": p}))

        def whole(x: Any, p: int = p) -> Any:
            return jnp.sum(jnp.abs(x) ** p, axis=(2, 3), keepdims=True) ** (1 / p)

        cases.append(GradientCase(f"{p}", "GlobalLpPool", (floats(2, 2, 3, 2),), whole, {"p": p}))
    return cases


def _pairs(values: Any) -> Any:
    return jnp.stack([values.real, values.imag], axis=-1)


def signal_cases() -> list[GradientCase]:
    def joined(x: Any) -> Any:
        return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0] + 0j

    cases = []
    for name, shape, length, axis, inverse, onesided in (
        ("real", (2, 5, 1), None, None, 0, 0),
        ("complex", (2, 3, 4, 2), None, 1, 0, 0),
        ("longer", (2, 3, 2), 5, -2, 0, 0),
        ("shorter", (2, 6, 1), 4, 1, 0, 0),
        ("inverse", (2, 5, 2), None, 1, 1, 0),
        ("inverse_real", (2, 4, 1), None, 0, 1, 0),
        ("onesided", (2, 6, 1), None, None, 0, 1),
        ("onesided_odd", (2, 7, 1), 5, 1, 0, 1),
        ("back", (2, 4, 2), None, None, 1, 1),
        ("back_odd", (2, 4, 2), 7, 1, 1, 1),
        ("back_short", (2, 5, 2), 4, 1, 1, 1),
    ):

        def transformed(x: Any, n: Any = length, axis: Any = axis, back: int = inverse, half: int = onesided) -> Any:
            along = (-2 if axis is None else axis) % x.ndim
            if half and back:
                return jnp.fft.irfft(joined(x), n=n or 2 * (x.shape[along] - 1), axis=along)[..., None]
            if half:
                return _pairs(jnp.fft.rfft(x[..., 0], n=n, axis=along))
            return _pairs((jnp.fft.ifft if back else jnp.fft.fft)(joined(x), n=n, axis=along))

        lists = tuple(None if number is None else np.array(number) for number in (length, axis))
        attributes: dict[str, Any] = {"inverse": inverse, "onesided": onesided}
        cases.append(GradientCase(name, "DFT", (floats(*shape), *lists), transformed, attributes))

    for name, shape, step, window, length, onesided in (
        ("window", (2, 11, 1), 2, 4, None, 1),
        ("length", (2, 9, 1), 3, None, 5, 1),
        ("both", (1, 12, 2), 5, 4, 4, 0),
        ("many", (1, 12, 1), 1, 3, None, 0),
    ):

        def framed(
            x: Any, w: Any = 1.0, step: int = step, size: int = window or length or 0, half: int = onesided
        ) -> Any:
            frames = jnp.stack([x[:, at : at + size] for at in range(0, x.shape[1] - size + 1, step)], axis=1)
            frames = frames * jnp.reshape(w, (-1, 1))
            return _pairs(jnp.fft.rfft(frames[..., 0], axis=2) if half else jnp.fft.fft(joined(frames), axis=2))

        inputs = (
            floats(*shape),
            np.array(step),
            None if window is None else floats(window, seed=1),
            None if length is None else np.array(length),
        )
        cases.append(GradientCase(name, "STFT", inputs, framed, {"onesided": onesided}))
    return cases
