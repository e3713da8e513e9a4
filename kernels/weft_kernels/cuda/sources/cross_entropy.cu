// Softmax cross-entropy of scores (batch, classes, inner) and labels (batch, inner); a row is a label's scores.

// weights (rows): 1 or the label's class weight, 0 where the label is ignored. `wrong` (1), which must hold `rows` or
// more before, gets the first row whose label is no class and not ignored; it weighs 0.
// Launch: any one-dimensional grid and block.
template <typename T, typename L>
__global__ void label_weights(const L* labels, const T* by_class, T* weights, word_t* wrong, index_t rows,
                              index_t classes, index_t has_ignored, long_t ignored, index_t has_weights) {
    GRID_LOOP(row, rows) {
        const long_t label = labels[row];
        T weight = T(0);
        if (!(has_ignored && label == ignored)) {
            if (label < 0 || label >= classes) {
                // The least row wins in whatever order threads come.
                atomicMin(wrong, word_t(row));
            } else {
                weight = has_weights ? by_class[label] : T(1);
            }
        }
        weights[row] = weight;
    }
}

// log_prob (batch, classes, inner) = ln softmax over classes; losses (rows) = -weight * log_prob at the label.
// A label that weighs nothing points at class 0.
//
// Launch: blocks of (rows, lanes), lanes a power of two, one-dimensional grid; rows * lanes wide numbers of shared
// memory. Lanes of a row share its classes. With inner 1 take one row and many lanes, else many rows and one lane: then
// neighbours read neighbours.
template <typename T, typename L>
__global__ void cross_entropy(const T* scores, const L* labels, const T* weights, T* log_prob, T* losses, index_t rows,
                              index_t classes, index_t inner) {
    typedef typename Wide<T>::type W;
    SHARED_MEMORY(W, partial);
    const int here = threadIdx.y * blockDim.x + threadIdx.x;
    for (index_t first = index_t(blockIdx.x) * blockDim.x; first < rows; first += index_t(gridDim.x) * blockDim.x) {
        const index_t row = first + threadIdx.x;
        // A thread beyond the rows does no work and still meets the others.
        const index_t mine = row < rows ? classes : 0;
        const index_t base = row / inner * classes * inner + row % inner;

        W largest = -infinity();
        for (index_t c = threadIdx.y; c < mine; c += blockDim.y) {
            largest = fmax(largest, W(scores[base + c * inner]));
        }
        partial[here] = largest;
        for (int half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half) {
                partial[here] = fmax(partial[here], partial[here + half * blockDim.x]);
            }
        }
        __syncthreads();
        largest = partial[threadIdx.x];
        __syncthreads();

        W sum = W(0);
        for (index_t c = threadIdx.y; c < mine; c += blockDim.y) {
            sum += exp(W(scores[base + c * inner]) - largest);
        }
        partial[here] = sum;
        for (int half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half) {
                partial[here] += partial[here + half * blockDim.x];
            }
        }
        __syncthreads();
        const W logarithm = log(partial[threadIdx.x]);
        __syncthreads();

        for (index_t c = threadIdx.y; c < mine; c += blockDim.y) {
            log_prob[base + c * inner] = T(W(scores[base + c * inner]) - largest - logarithm);
        }
        if (mine > 0 && threadIdx.y == 0) {
            const long_t label = labels[row];
            const index_t safe = label < 0 || label >= classes ? 0 : index_t(label);
            const W weight = W(weights[row]);
            const W likelihood = W(scores[base + (weight == W(0) ? 0 : safe) * inner]) - largest - logarithm;
            losses[row] = T(-likelihood * weight);
        }
    }
}

// result (batch, classes, inner) = scale * (softmax - one hot label), scale (rows).
// Launch: any one-dimensional grid and block.
template <typename T, typename L>
__global__ void cross_entropy_grad(const T* log_prob, const L* labels, const T* scale, T* result, index_t rows,
                                   index_t classes, index_t inner) {
    typedef typename Wide<T>::type W;
    GRID_LOOP(e, rows * classes) {
        const index_t row = e / inner / classes * inner + e % inner;
        const index_t here = e / inner % classes;
        const W factor = W(scale[row]);
        const W whole = exp(W(log_prob[e])) * factor;
        result[e] = T(labels[row] == here ? whole - factor : whole);
    }
}
