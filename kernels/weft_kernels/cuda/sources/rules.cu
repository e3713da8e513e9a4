// The built-in update rules, in place: dense, or on some rows of a table.
//
// gradient (count, width) belongs to the rows `ids` (count) of weight and state (rows, width) where has_ids is 1, and to
// all of them in order where it is 0; ids are distinct, and a negative one is left. Numbers are computed in the array's
// type, or in float32 for float16.
// Launch: any one-dimensional grid and block; a thread loops over elements of the gradient.

template <typename T>
__global__ void sgd(T* weight, const T* gradient, ROWS, double rate, double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        weight[at] = T(w - W(rate) * (W(gradient[e]) + W(weight_decay) * w));
    }
}

template <typename T>
__global__ void momentum(T* weight, const T* gradient, T* velocity, ROWS, double rate, double factor,
                         double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W moved = W(factor) * W(velocity[at]) + W(gradient[e]) + W(weight_decay) * w;
        velocity[at] = T(moved);
        weight[at] = T(w - W(rate) * moved);
    }
}

// `correction1` and `correction2` are 1 - beta^step.
template <typename T>
__global__ void adam(T* weight, const T* gradient, T* mean, T* variance, ROWS, double rate, double beta1, double beta2,
                     double epsilon, double correction1, double correction2) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W g = W(gradient[e]);
        const W m = W(beta1) * W(mean[at]) + W(1 - beta1) * g;
        const W v = W(beta2) * W(variance[at]) + W(1 - beta2) * g * g;
        mean[at] = T(m);
        variance[at] = T(v);
        weight[at] = T(W(weight[at]) - W(rate / correction1) * m / (sqrt(v) / W(sqrt(correction2)) + W(epsilon)));
    }
}

template <typename T>
__global__ void adagrad(T* weight, const T* gradient, T* sum, ROWS, double rate, double epsilon, double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W g = W(gradient[e]) + W(weight_decay) * w;
        const W s = W(sum[at]) + g * g;
        sum[at] = T(s);
        weight[at] = T(w - W(rate) * g / (sqrt(s) + W(epsilon)));
    }
}
