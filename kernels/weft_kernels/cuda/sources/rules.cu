// The built-in update rules, in place: dense, or on some rows of a table. Operations are in the order of the bodies in
// `weft_kernels.rules.built_in`, so that results differ by the rounding of a fused product and sum alone.
//
// gradient (count, width) belongs to the rows `ids` (count) of weight and state (rows, width) where has_ids is 1, and to
// all of them in order where it is 0; ids are distinct, and a negative one is left. Numbers are computed in the array's
// type, or in float32 for float16.
// Launch: any one-dimensional grid and block; a thread loops over elements of the gradient.

template <typename T>
__global__ void sgd(T* weight, const T* gradient, ROWS, double lr, double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        weight[at] = T(W(weight[at]) * W(1 - lr * weight_decay) - W(gradient[e]) * W(lr));
    }
}

template <typename T>
__global__ void momentum(T* weight, const T* gradient, T* velocity, ROWS, double lr, double factor,
                         double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W moved = W(velocity[at]) * W(factor) + W(gradient[e]) + w * W(weight_decay);
        velocity[at] = as_state<T>(moved);
        weight[at] = T(w - moved * W(lr));
    }
}

template <typename T>
__global__ void nesterov(T* weight, const T* gradient, T* velocity, ROWS, double lr, double factor,
                         double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W g = W(gradient[e]) + w * W(weight_decay);
        const W moved = W(velocity[at]) * W(factor) + g;
        velocity[at] = as_state<T>(moved);
        weight[at] = T(w - (moved * W(factor) + g) * W(lr));
    }
}

// `correction1` and `correction2` are 1 - beta^step.
template <typename T>
__global__ void adam(T* weight, const T* gradient, T* mean, T* variance, ROWS, double lr, double beta1, double beta2,
                     double epsilon, double correction1, double correction2) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W g = W(gradient[e]);
        const W m = W(mean[at]) * W(beta1) + g * W(1 - beta1);
        const W v = W(variance[at]) * W(beta2) + g * g * W(1 - beta2);
        mean[at] = as_state<T>(m);
        variance[at] = as_state<T>(v);
        const W root = sqrt(v) + W(epsilon * sqrt(correction2));
        weight[at] = T(W(weight[at]) - m / root * W(lr * sqrt(correction2) / correction1));
    }
}

template <typename T>
__global__ void adamw(T* weight, const T* gradient, T* mean, T* variance, ROWS, double lr, double beta1,
                      double beta2, double epsilon, double weight_decay, double correction1, double correction2) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W g = W(gradient[e]);
        const W m = W(mean[at]) * W(beta1) + g * W(1 - beta1);
        const W v = W(variance[at]) * W(beta2) + g * g * W(1 - beta2);
        mean[at] = as_state<T>(m);
        variance[at] = as_state<T>(v);
        const W root = sqrt(v) + W(epsilon * sqrt(correction2));
        const W w = W(weight[at]) * W(1 - lr * weight_decay);
        weight[at] = T(w - m / root * W(lr * sqrt(correction2) / correction1));
    }
}

template <typename T>
__global__ void adagrad(T* weight, const T* gradient, T* sum, ROWS, double lr, double epsilon, double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W g = W(gradient[e]) + w * W(weight_decay);
        const W s = W(sum[at]) + g * g;
        sum[at] = as_state<T>(s);
        weight[at] = T(w - g / (sqrt(s) + W(epsilon)) * W(lr));
    }
}

template <typename T>
__global__ void rmsprop(T* weight, const T* gradient, T* square, ROWS, double lr, double decay, double epsilon,
                        double weight_decay) {
    typedef typename Wide<T>::type W;
    UPDATE_LOOP {
        const W w = W(weight[at]);
        const W g = W(gradient[e]) + w * W(weight_decay);
        const W s = W(square[at]) * W(decay) + g * g * W(1 - decay);
        square[at] = as_state<T>(s);
        weight[at] = T(w - g / (sqrt(s) + W(epsilon)) * W(lr));
    }
}

template <typename T>
__global__ void ftrl(T* weight, const T* gradient, T* total, T* squares, ROWS, double lr, double beta, double l1,
                     double l2) {
    typedef typename Wide<T>::type W;
    if (lr == 0) {
        return;
    }
    UPDATE_LOOP {
        const W g = W(gradient[e]);
        const W n = W(squares[at]) + g * g;
        const W root = sqrt(n);
        const W grown = (root - sqrt(W(squares[at]))) * W(1 / lr);
        const W z = W(total[at]) + (g - grown * W(weight[at]));
        squares[at] = as_state<T>(n);
        total[at] = as_state<T>(z);
        const W within = z < W(-l1) ? W(-l1) : z > W(l1) ? W(l1) : z;
        weight[at] = T((within - z) / (root * W(1 / lr) + W(beta * (1 / lr) + l2)));
    }
}
