// Statistics of rows, and what their gradients sum. A row is what is normalized together: a layer's elements of a sample,
// or a channel's of a batch. Its elements lie in runs of `inner`: element j of row r is at r * row + j / inner * run +
// j % inner.
//
// Launch: blocks of a power of two threads, one-dimensional grid, one wide number of shared memory a thread. A block
// works on a row at a time and sums it in an order that its number of threads alone decides.

#define LIES(name) index_t name##_row, index_t name##_run
#define ELEMENT(name, r, j) name[(r) * name##_row + (j) / inner * name##_run + (j) % inner]

// The sum of what all threads of the block have, in each of them.
template <typename W>
__device__ inline W block_sum(W mine, W* partial) {
    partial[threadIdx.x] = mine;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
    }
    __syncthreads();
    const W sum = partial[0];
    __syncthreads();
    return sum;
}

// mean, variance and inverse = 1 / sqrt(variance + epsilon), each (rows); a row without elements has 0 and 0. With
// centred 0 the mean is taken as 0, and the variance is the mean square.
template <typename T>
__global__ void row_statistics(const T* data, typename Wide<T>::type* mean, typename Wide<T>::type* variance,
                               typename Wide<T>::type* inverse, index_t rows, index_t count, index_t inner,
                               LIES(data), index_t centred, double epsilon) {
    typedef typename Wide<T>::type W;
    SHARED_MEMORY(W, partial);
    const W share = W(count > 0 ? count : 1);
    for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
        W middle = W(0);
        if (centred) {
            W sum = W(0);
            for (index_t j = threadIdx.x; j < count; j += blockDim.x) {
                sum += W(ELEMENT(data, row, j));
            }
            middle = block_sum(sum, partial) / share;
        }
        W square = W(0);
        for (index_t j = threadIdx.x; j < count; j += blockDim.x) {
            const W beside = W(ELEMENT(data, row, j)) - middle;
            square += beside * beside;
        }
        square = block_sum(square, partial) / share;
        if (threadIdx.x == 0) {
            mean[row] = middle;
            variance[row] = square;
            inverse[row] = W(1) / sqrt(square + W(epsilon));
        }
    }
}

// sums (rows) of the gradient, products (rows) of it with the normalized data, and the means of both; where has_scale is
// 1 the gradient is that of the data scaled by `scale` (count).
template <typename T>
__global__ void row_shares(const T* gradient, const T* data, const typename Wide<T>::type* mean,
                           const typename Wide<T>::type* inverse, const typename Wide<T>::type* scale,
                           typename Wide<T>::type* sums, typename Wide<T>::type* products,
                           typename Wide<T>::type* mean_sums, typename Wide<T>::type* mean_products, index_t rows,
                           index_t count, index_t inner, LIES(gradient), LIES(data), index_t has_scale) {
    typedef typename Wide<T>::type W;
    SHARED_MEMORY(W, partial);
    for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
        W sum = W(0), product = W(0);
        for (index_t j = threadIdx.x; j < count; j += blockDim.x) {
            const W given = W(ELEMENT(gradient, row, j)) * (has_scale ? scale[j] : W(1));
            sum += given;
            product += given * ((W(ELEMENT(data, row, j)) - mean[row]) * inverse[row]);
        }
        sum = block_sum(sum, partial);
        product = block_sum(product, partial);
        if (threadIdx.x == 0) {
            sums[row] = sum;
            products[row] = product;
            mean_sums[row] = sum / W(count);
            mean_products[row] = product / W(count);
        }
    }
}

// partial (chunks, count): for each column of rows that follow each other the sum, over a chunk of them, of the gradient
// times the normalized data. Launch: any one-dimensional grid and block.
template <typename T>
__global__ void column_shares(const T* gradient, const T* data, const typename Wide<T>::type* mean,
                              const typename Wide<T>::type* inverse, typename Wide<T>::type* partial, index_t rows,
                              index_t count, index_t chunks) {
    typedef typename Wide<T>::type W;
    const index_t each = (rows + chunks - 1) / chunks;
    GRID_LOOP(e, chunks * count) {
        const index_t column = e % count, first = e / count * each;
        W sum = W(0);
        for (index_t row = first; row < first + each && row < rows; ++row) {
            sum += W(gradient[row * count + column]) * ((W(data[row * count + column]) - mean[row]) * inverse[row]);
        }
        partial[e] = sum;
    }
}
