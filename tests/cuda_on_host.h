// CUDA C on a CPU: a launch runs its blocks one after the other, and the threads of a block in turns.
//
// Where a kernel synchronizes, each thread is a coroutine that runs until __syncthreads; the threads of a block take
// turns in ascending or descending order (weft_descending), so that a missing barrier shows as a difference. A barrier
// that some threads of a block meet and others do not ends the process's launch with an error.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define WEFT_ON_HOST
#define __global__
#define __device__
#define SHARED_MEMORY(type, name) type* name = reinterpret_cast<type*>(weft_shared)

typedef _Float16 __half;

// bfloat16 as the device has it: a float's upper bits, rounded to the nearest, ties to even.
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    template <typename T>
    explicit __nv_bfloat16(T value) {
        const float number = float(value);
        unsigned int whole;
        std::memcpy(&whole, &number, sizeof whole);
        bits = number != number ? 0x7fc0 : (unsigned short)((whole + 0x7fff + ((whole >> 16) & 1)) >> 16);
    }
    operator float() const {
        const unsigned int whole = (unsigned int)(bits) << 16;
        float number;
        std::memcpy(&number, &whole, sizeof number);
        return number;
    }
};
using std::exp;
using std::fmax;
using std::log;
using std::pow;
using std::sqrt;

struct Dim3 {
    int x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
static unsigned char* weft_shared = nullptr;
static int weft_descending = 0;

static inline float __int_as_float(int bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

template <typename T>
static T atomicMin(T* place, T value) {
    const T before = *place;
    if (value < before) *place = value;
    return before;
}

// Coroutines, one a thread of the block that runs.
struct Fiber {
    ucontext_t context;
    Dim3 thread;
    bool done;
};
static const size_t weft_most_threads = 1024, weft_stack_bytes = 1 << 16;
static ucontext_t weft_scheduler;
static Fiber* weft_fibers = nullptr;
static char* weft_stacks;
static size_t weft_current;
static void (*weft_body)();

static void __syncthreads() {
    swapcontext(&weft_fibers[weft_current].context, &weft_scheduler);
    threadIdx = weft_fibers[weft_current].thread;
}

static void weft_enter() {
    weft_body();
    weft_fibers[weft_current].done = true;
    swapcontext(&weft_fibers[weft_current].context, &weft_scheduler);
}

// Runs one block whose threads synchronize. Returns whether all of them met the same barriers.
static bool weft_run_block() {
    const size_t threads = size_t(blockDim.x) * blockDim.y * blockDim.z;
    if (weft_fibers == nullptr) {
        weft_fibers = static_cast<Fiber*>(std::malloc(weft_most_threads * sizeof(Fiber)));
        weft_stacks = static_cast<char*>(std::malloc(weft_most_threads * weft_stack_bytes));
    }
    for (size_t i = 0; i < threads; ++i) {
        Fiber& fiber = weft_fibers[i];
        fiber.done = false;
        fiber.thread = {int(i % blockDim.x), int(i / blockDim.x % blockDim.y), int(i / blockDim.x / blockDim.y)};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = weft_stacks + i * weft_stack_bytes;
        fiber.context.uc_stack.ss_size = weft_stack_bytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, weft_enter, 0);
    }
    while (true) {
        size_t ended = 0;
        for (size_t turn = 0; turn < threads; ++turn) {
            weft_current = weft_descending ? threads - 1 - turn : turn;
            threadIdx = weft_fibers[weft_current].thread;
            swapcontext(&weft_scheduler, &weft_fibers[weft_current].context);
            ended += weft_fibers[weft_current].done;
        }
        if (ended == threads) return true;
        if (ended > 0) return false;
    }
}

template <typename Body>
static bool weft_launch(const int* grid, const int* block, int shared, bool synchronizes, Body body) {
    static Body* running;
    running = &body;
    weft_body = [] { (*running)(); };
    weft_shared = static_cast<unsigned char*>(std::realloc(weft_shared, shared + 1));
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (int z = 0; z < grid[2]; ++z)
        for (int y = 0; y < grid[1]; ++y)
            for (int x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                // What a block finds in shared memory is nothing to rely on.
                std::memset(weft_shared, 0xA5, shared);
                if (synchronizes) {
                    if (!weft_run_block()) return false;
                    continue;
                }
                for (int k = 0; k < block[2]; ++k)
                    for (int j = 0; j < block[1]; ++j)
                        for (int i = 0; i < block[0]; ++i) {
                            threadIdx = {i, j, k};
                            weft_body();
                        }
            }
    return true;
}

// A parameter as the launcher checks it: `*` and `c` of a pointer to constant, the kind, and bytes.
template <typename P>
static int weft_parameter(char* text) {
    typedef std::remove_pointer_t<P> Pointee;
    typedef std::remove_const_t<Pointee> V;
    const char* pointer = !std::is_pointer_v<P> ? "" : std::is_const_v<Pointee> ? "*c" : "*";
    const char kind = std::is_same_v<V, bool>            ? 'b'
                      : std::is_same_v<V, __half>        ? 'f'
                      : std::is_same_v<V, __nv_bfloat16> ? 'V'
                      : std::is_floating_point_v<V>      ? 'f'
                      : std::is_unsigned_v<V>            ? 'u'
                                                         : 'i';
    return std::sprintf(text, "%s%c%d ", pointer, kind, int(sizeof(V)));
}

template <typename... P>
static const char* weft_parameters(void (*)(P...)) {
    static char text[8 * sizeof...(P) + 1];
    char* end = text;
    ((end += weft_parameter<P>(end)), ...);
    return text;
}

template <typename... P, size_t... I>
static bool weft_call(void (*kernel)(P...), void** args, const int* grid, const int* block, int shared,
                      bool synchronizes, std::index_sequence<I...>) {
    return weft_launch(grid, block, shared, synchronizes, [=] { kernel(*static_cast<P*>(args[I])...); });
}

#define WEFT_ENTRY(number, synchronizes, ...)                                                              \
    extern "C" const char* parameters_##number() { return weft_parameters(&__VA_ARGS__); }               \
    template <typename... P>                                                                               \
    static bool run_##number(void (*kernel)(P...), void** args, const int* grid, const int* block, int s) { \
        return weft_call(kernel, args, grid, block, s, synchronizes, std::index_sequence_for<P...>());     \
    }                                                                                                      \
    extern "C" int entry_##number(void** args, const int* grid, const int* block, int s, int descending) { \
        weft_descending = descending;                                                                      \
        return run_##number(&__VA_ARGS__, args, grid, block, s);                                           \
    }
