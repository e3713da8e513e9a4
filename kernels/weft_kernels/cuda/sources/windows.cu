// The windows of convolution and pooling over arrays (batch, channels, spatial ...) of up to three spatial dimensions;
// missing ones lead, with one element, one place and one window. Window i covers input i * stride - begin + j * dilation.
// An array's images lie in rows, one `sample` step and one `channel` step from the next: samples or channels may lead.
//
// Launch: any one-dimensional grid and block; a thread loops over elements of what it writes. Nothing is shared, nothing
// is added atomically: each result is summed by one thread, over places of the kernel in row-major order.

struct Windows {
    index_t size[3], kernel[3], stride[3], dilation[3], begin[3], count[3];
};

#define PER_AXIS(name) index_t name##0, index_t name##1, index_t name##2
#define WINDOWS PER_AXIS(size), PER_AXIS(kernel), PER_AXIS(stride), PER_AXIS(dilation), PER_AXIS(begin), PER_AXIS(count)
#define AXES(name) {name##0, name##1, name##2}
#define GIVEN_WINDOWS {AXES(size), AXES(kernel), AXES(stride), AXES(dilation), AXES(begin), AXES(count)}

__device__ inline index_t volume(const index_t* sides) {
    return sides[0] * sides[1] * sides[2];
}

__device__ inline void coordinates(index_t flat, const index_t* sides, index_t* at) {
    at[2] = flat % sides[2];
    at[1] = flat / sides[2] % sides[1];
    at[0] = flat / sides[2] / sides[1];
}

// The flat input that `window` has at `place`, or -1 in the padding.
__device__ inline index_t input_at(const Windows& w, const index_t* window, const index_t* place) {
    index_t flat = 0;
    for (int axis = 0; axis < 3; ++axis) {
        const index_t at = window[axis] * w.stride[axis] - w.begin[axis] + place[axis] * w.dilation[axis];
        if (at < 0 || at >= w.size[axis]) {
            return -1;
        }
        flat = flat * w.size[axis] + at;
    }
    return flat;
}

// The flat window that has `input` at `place`, or -1 where none does.
__device__ inline index_t window_at(const Windows& w, const index_t* input, const index_t* place) {
    index_t flat = 0;
    for (int axis = 0; axis < 3; ++axis) {
        const index_t reached = input[axis] + w.begin[axis] - place[axis] * w.dilation[axis];
        if (reached < 0 || reached % w.stride[axis] != 0 || reached / w.stride[axis] >= w.count[axis]) {
            return -1;
        }
        flat = flat * w.count[axis] + reached / w.stride[axis];
    }
    return flat;
}

#define STEPS(name) index_t name##_sample, index_t name##_channel

// Where image number `image` of (batch, channels) begins.
#define IMAGE(name, image) ((image) / channels * name##_sample + (image) % channels * name##_channel)

// columns (channels, places, batch, windows) of data (batch, channels, spatial).
template <typename T>
__global__ void im2col(const T* data, T* columns, index_t batch, index_t channels, STEPS(data), WINDOWS) {
    const Windows w = GIVEN_WINDOWS;
    const index_t places = volume(w.kernel), windows = volume(w.count);
    GRID_LOOP(e, channels * places * batch * windows) {
        const index_t sample = e / windows % batch, row = e / windows / batch;
        index_t window[3], place[3];
        coordinates(e % windows, w.count, window);
        coordinates(row % places, w.kernel, place);
        const index_t from = input_at(w, window, place);
        columns[e] = from < 0 ? T(0) : data[sample * data_sample + row / places * data_channel + from];
    }
}

// data (batch, channels, spatial): the sum of what each element of `columns` was copied from.
template <typename T>
__global__ void col2im(const T* columns, T* data, index_t batch, index_t channels, STEPS(data), WINDOWS) {
    typedef typename Wide<T>::type W;
    const Windows w = GIVEN_WINDOWS;
    const index_t places = volume(w.kernel), windows = volume(w.count), elements = volume(w.size);
    GRID_LOOP(e, batch * channels * elements) {
        const index_t channel = e / elements % channels, sample = e / elements / channels;
        index_t input[3], place[3];
        coordinates(e % elements, w.size, input);
        W sum = W(0);
        for (index_t k = 0; k < places; ++k) {
            coordinates(k, w.kernel, place);
            const index_t window = window_at(w, input, place);
            if (window >= 0) {
                sum += W(columns[((channel * places + k) * batch + sample) * windows + window]);
            }
        }
        data[IMAGE(data, e / elements) + e % elements] = T(sum);
    }
}

// largest (batch, channels, windows) of data (batch, channels, spatial): NaN where a window holds one.
template <typename T>
__global__ void max_pool(const T* data, T* largest, index_t batch, index_t channels, STEPS(data), STEPS(largest),
                         WINDOWS) {
    typedef typename Wide<T>::type W;
    const Windows w = GIVEN_WINDOWS;
    const index_t places = volume(w.kernel), windows = volume(w.count);
    GRID_LOOP(e, batch * channels * windows) {
        const T* image = data + IMAGE(data, e / windows);
        index_t window[3], place[3];
        coordinates(e % windows, w.count, window);
        W best = W(-infinity());
        for (index_t k = 0; k < places; ++k) {
            coordinates(k, w.kernel, place);
            const index_t from = input_at(w, window, place);
            const W here = from < 0 ? W(-infinity()) : W(image[from]);
            best = here > best || here != here ? here : best;
        }
        largest[IMAGE(largest, e / windows) + e % windows] = T(best);
    }
}

// chosen (batch, channels, windows): the first place of each window that holds its largest element, -1 where that is
// NaN.
template <typename T>
__global__ void max_pool_choice(const T* data, const T* largest, int* chosen, index_t batch, index_t channels,
                                STEPS(data), STEPS(largest), WINDOWS) {
    typedef typename Wide<T>::type W;
    const Windows w = GIVEN_WINDOWS;
    const index_t places = volume(w.kernel), windows = volume(w.count);
    GRID_LOOP(e, batch * channels * windows) {
        const T* image = data + IMAGE(data, e / windows);
        index_t window[3], place[3];
        coordinates(e % windows, w.count, window);
        const W wanted = W(largest[IMAGE(largest, e / windows) + e % windows]);
        const bool lowest = wanted < W(0) && wanted - wanted != W(0) && wanted == wanted;
        int found = -1;
        for (index_t k = 0; k < places && found < 0; ++k) {
            coordinates(k, w.kernel, place);
            const index_t from = input_at(w, window, place);
            // The padding counts as minus infinity, which takes the gradient away where it comes first.
            if (from < 0 ? lowest : W(image[from]) == wanted) {
                found = int(k);
            }
        }
        chosen[e] = found;
    }
}

// result (batch, channels, spatial): each window's gradient, at the element that was its largest.
template <typename T>
__global__ void max_pool_spread(const T* gradient, const int* chosen, T* result, index_t batch, index_t channels,
                                STEPS(gradient), STEPS(result), WINDOWS) {
    typedef typename Wide<T>::type W;
    const Windows w = GIVEN_WINDOWS;
    const index_t places = volume(w.kernel), windows = volume(w.count), elements = volume(w.size);
    GRID_LOOP(e, batch * channels * elements) {
        const T* given = gradient + IMAGE(gradient, e / elements);
        const int* first = chosen + e / elements * windows;
        index_t input[3], place[3];
        coordinates(e % elements, w.size, input);
        W sum = W(0);
        for (index_t k = 0; k < places; ++k) {
            coordinates(k, w.kernel, place);
            const index_t window = window_at(w, input, place);
            if (window >= 0 && first[window] == int(k)) {
                sum += W(given[window]);
            }
        }
        result[IMAGE(result, e / elements) + e % elements] = T(sum);
    }
}
