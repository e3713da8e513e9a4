// What every source begins with. Sums and functions of float16 are computed in float32 and rounded once.

#ifndef WEFT_ON_HOST
#include <cuda_fp16.h>
#define SHARED_MEMORY(type, name)                                    \
    extern __shared__ __align__(16) unsigned char shared_bytes[]; \
    type* name = reinterpret_cast<type*>(shared_bytes)
#endif

typedef long long index_t;
typedef unsigned long long word_t;

template <typename T>
struct Wide {
    typedef T type;
};

template <>
struct Wide<__half> {
    typedef float type;
};

__device__ inline float infinity() {
    return __int_as_float(0x7f800000);
}

// Element e of n for this thread, whatever the grid: any launch covers everything.
#define GRID_LOOP(e, n)                                                                   \
    for (index_t e = index_t(blockIdx.x) * blockDim.x + threadIdx.x; e < index_t(n); \
         e += index_t(gridDim.x) * blockDim.x)

// The first place in `sorted` (count), ascending, that holds `wanted` or more.
__device__ inline index_t lower_bound(const index_t* sorted, index_t count, index_t wanted) {
    index_t low = 0, high = count;
    while (low < high) {
        const index_t middle = low + (high - low) / 2;
        if (sorted[middle] < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
