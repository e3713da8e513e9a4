// What every source begins with. Sums and functions of float16 and bfloat16 are computed in float32 and rounded once.

#ifndef WEFT_ON_HOST
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SHARED_MEMORY(type, name)                                    \
    extern __shared__ __align__(16) unsigned char shared_bytes[]; \
    type* name = reinterpret_cast<type*>(shared_bytes)
#endif

// What elements are counted in: launches whose arrays are small are compiled with WEFT_INDEX_32, in which a division
// takes a quarter of the instructions of one of 64 bits.
#ifdef WEFT_INDEX_32
typedef int index_t;
#else
typedef long long index_t;
#endif
typedef long long long_t;
typedef unsigned long long word_t;
typedef unsigned char byte_t;
typedef signed char small_t;
typedef unsigned short ushort_t;
typedef unsigned int uint_t;

template <typename T>
struct Wide {
    typedef T type;
};

template <>
struct Wide<__half> {
    typedef float type;
};

template <>
struct Wide<__nv_bfloat16> {
    typedef float type;
};

__device__ inline float infinity() {
    return __int_as_float(0x7f800000);
}

// A rule's state as it is kept: float16 is rounded, but what is not 0 does not become 0, and nothing becomes infinite.
template <typename T>
__device__ inline T as_state(typename Wide<T>::type number) {
    return number;
}

template <>
__device__ inline __half as_state<__half>(float number) {
    const float largest = 65504.0f, smallest = 5.9604644775390625e-8f;
    const __half rounded = __half(number > largest ? largest : number < -largest ? -largest : number);
    return number != 0 && float(rounded) == 0 ? __half(number < 0 ? -smallest : smallest) : rounded;
}

// Element e of n for this thread, whatever the grid: any launch covers everything.
#define GRID_LOOP(e, n)                                                                   \
    for (index_t e = index_t(blockIdx.x) * blockDim.x + threadIdx.x; e < index_t(n); \
         e += index_t(gridDim.x) * blockDim.x)

// The first place in `sorted` (count), ascending, that holds `wanted` or more.
__device__ inline index_t lower_bound(const long_t* sorted, index_t count, long_t wanted) {
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

// An update's gradient (count, width) is of all elements in order where has_ids is 0, and of the rows `ids` (count) of
// what is updated (rows, width) where it is 1; ids are distinct, and a negative one is left.
#define ROWS index_t count, index_t width, const long_t* ids, index_t has_ids

// Where element e of the gradient lies in weight and state, or -1.
__device__ inline index_t place_of(index_t e, index_t width, const long_t* ids, index_t has_ids) {
    if (!has_ids) {
        return e;
    }
    const index_t id = index_t(ids[e / width]);
    return id < 0 ? -1 : id * width + e % width;
}

#define UPDATE_LOOP                                                                \
    GRID_LOOP(e, count * width)                                                    \
    for (index_t at = place_of(e, width, ids, has_ids), once = 1; at >= 0 && once; once = 0)

// C's remainder, which has the dividend's sign: exact in double for every type but 64-bit integers, of which 0 divides
// none: what is left is then 0, as NumPy has it.
template <typename T>
__device__ inline T rest_of(T dividend, T divisor) {
    return T(fmod(double(dividend), double(divisor)));
}

template <>
__device__ inline long long rest_of(long long dividend, long long divisor) {
    return divisor ? dividend % divisor : 0;
}

template <>
__device__ inline word_t rest_of(word_t dividend, word_t divisor) {
    return divisor ? dividend % divisor : 0;
}

// NumPy's remainder, which has the divisor's sign, and quotient rounded down.
template <typename T>
__device__ inline T modulo(T dividend, T divisor) {
    const T rest = rest_of(dividend, divisor);
    return rest != T(0) && (rest < T(0)) != (divisor < T(0)) ? T(rest + divisor) : rest;
}

template <typename T>
__device__ inline T round_down(T dividend, T divisor) {
    return T(floor(double(dividend) / double(divisor)));
}

template <>
__device__ inline long long round_down(long long dividend, long long divisor) {
    return divisor ? (dividend - modulo(dividend, divisor)) / divisor : 0;
}

template <>
__device__ inline word_t round_down(word_t dividend, word_t divisor) {
    return divisor ? dividend / divisor : 0;
}
