// Rows of arrays by number: gathered, summed by number, and the union of two slots' rows.
//
// Launch: any one-dimensional grid and block; a thread loops over elements of what it writes. Each element is written by
// one thread, which sums in order: results do not depend on the launch.

// result (count, width): the rows `ids` (count) of table (rows, width); zeros where an id is negative.
template <typename T>
__global__ void gather_rows(const T* table, const long_t* ids, T* result, index_t count, index_t width) {
    GRID_LOOP(e, count * width) {
        const index_t id = index_t(ids[e / width]);
        result[e] = id < 0 ? T(0) : table[id * width + e % width];
    }
}

// result (outer, rows, inner): row r is the sum of those rows of gradient (outer, count, inner) whose id is r, in the
// order of `order` (count). sorted (count) has the ids in that order, ascending; order is stable.
template <typename T>
__global__ void sum_rows(const T* gradient, const long_t* sorted, const long_t* order, T* result, index_t outer,
                         index_t count, index_t rows, index_t inner) {
    typedef typename Wide<T>::type W;
    GRID_LOOP(e, outer * rows * inner) {
        const index_t row = e / inner % rows, lead = e / inner / rows;
        W sum = W(0);
        for (index_t j = lower_bound(sorted, count, row); j < count && sorted[j] == row; ++j) {
            sum += W(gradient[(lead * count + index_t(order[j])) * inner + e % inner]);
        }
        result[e] = T(sum);
    }
}

// result (count, width): for each of `ids` (count) its row of the first slot, and that of the second added to it. The ids
// of both, first_ids (first_count) and second_ids (second_count), are distinct and ascending.
template <typename T>
__global__ void merge_rows(const T* first, const long_t* first_ids, index_t first_count, const T* second,
                           const long_t* second_ids, index_t second_count, const long_t* ids, T* result,
                           index_t count, index_t width) {
    typedef typename Wide<T>::type W;
    GRID_LOOP(e, count * width) {
        const long_t id = ids[e / width];
        const index_t column = e % width;
        const index_t left = lower_bound(first_ids, first_count, id);
        const index_t right = lower_bound(second_ids, second_count, id);
        W sum = W(0);
        if (left < first_count && first_ids[left] == id) {
            sum = W(first[left * width + column]);
        }
        if (right < second_count && second_ids[right] == id) {
            sum += W(second[right * width + column]);
        }
        result[e] = T(sum);
    }
}
