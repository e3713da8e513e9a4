// Philox4x64 with ten rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11): the
// same words as the host draws. Draw d is word d mod 4 of the block whose counter is d div 4.
//
// Launch: any one-dimensional grid and block; a thread loops over blocks of four words.

__device__ inline void philox(word_t counter, word_t key0, word_t key1, word_t* words) {
    word_t c0 = counter, c1 = 0, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        const word_t high0 = __umul64hi(0xD2E7470EE14C6C93ULL, c0), low0 = 0xD2E7470EE14C6C93ULL * c0;
        const word_t high1 = __umul64hi(0xCA5A826395121157ULL, c2), low1 = 0xCA5A826395121157ULL * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B97F4A7C15ULL;
        key1 += 0xBB67AE8584CAA73BULL;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

// mask (count): whether draw `start` + e is `threshold` or more.
__global__ void kept(bool* mask, word_t key0, word_t key1, long_t start, index_t count, word_t threshold) {
    const long_t first = start / 4;
    const index_t blocks = index_t((start + count + 3) / 4 - first), ahead = index_t(start - first * 4);
    GRID_LOOP(block, blocks) {
        word_t words[4];
        philox(word_t(first + block), key0, key1, words);
        for (int word = 0; word < 4; ++word) {
            const index_t e = block * 4 + word - ahead;
            if (e >= 0 && e < count) {
                mask[e] = words[word] >= threshold;
            }
        }
    }
}
