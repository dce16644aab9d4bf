/* Cross entropy at one instruction-set level: compiled once a level, as kernels.c is. */
#include <math.h>

#include "cross_entropy.h"
#include "powers.h"

enum { STRETCH = 4096 }; /* classes that are summed in float32 */

#define NAME_(level) addnorm_classify_##level
#define NAME(level) NAME_(level)

/* One call for each block of the classes from `first` on; of the last, `left` may be there. */
#define BLOCKS(call)                                                    \
    for (int64_t i = first; i < last; i += BLOCK) {                     \
        const int64_t left = last - i < BLOCK ? last - i : BLOCK;       \
        call;                                                           \
    }

/* With what is no class -inf, which is neither the greatest nor adds anything. */
INLINE block logits_at(const float *x, int64_t left) {
    block b = {{all(-INFINITY), all(-INFINITY)}};
    if (left == BLOCK) return load_f32(x, BLOCK);
    memcpy(&b, x, (size_t)left * sizeof *x);
    return b;
}

static float greatest(const float *x, int64_t classes) {
    const int64_t first = 0, last = classes;
    floats high = all(-INFINITY);
    float found = -INFINITY;
    BLOCKS({
        const block b = logits_at(x + i, left);
        high = most(b.v[1], most(b.v[0], high));
    })
    for (int i = 0; i < WIDE; i++) found = high[i] > found ? high[i] : found;
    return found;
}

static double mean(const float *x, int64_t classes) {
    double total = 0;
    for (int64_t first = 0; first < classes; first += STRETCH) {
        const int64_t last = first + STRETCH < classes ? first + STRETCH : classes;
        block sums = {{{0}, {0}}};
        BLOCKS({
            const block b = load_f32(x + i, left);
            for (int j = 0; j < 2; j++) sums.v[j] += b.v[j];
        })
        total += (double)sum(sums.v[0] + sums.v[1]);
    }
    return total / (double)classes;
}

/* The sum of exp(x - top), and each of them into `to` if there is one. */
static double exponentials(const float *x, float *to, float top, int64_t classes) {
    double total = 0;
    for (int64_t first = 0; first < classes; first += STRETCH) {
        const int64_t last = first + STRETCH < classes ? first + STRETCH : classes;
        block sums = {{{0}, {0}}};
        BLOCKS({
            block b = logits_at(x + i, left);
            for (int j = 0; j < 2; j++) sums.v[j] += b.v[j] = exponential(b.v[j] - top);
            if (to) store_f32(to + i, b, left);
        })
        total += (double)sum(sums.v[0] + sums.v[1]);
    }
    return total;
}

void NAME(LEVEL)(const struct addnorm_classes *p, int64_t row) {
    const int64_t classes = p->classes, first = 0, last = classes;
    const float *x = p->logits + row * classes;
    float *grad = p->grad ? p->grad + row * classes : NULL;
    const float top = greatest(x, classes), less = p->smoothing / (float)classes;
    if (p->mean) p->mean[row] = mean(x, classes);
    if (p->top) p->top[row] = (double)top;
    const double total = exponentials(x, grad, top, classes);
    const float share = (float)(1 / total);
    p->lse[row] = (double)top + log(total);
    if (grad == NULL) return;
    BLOCKS({
        block b = load_f32(grad + i, left);
        for (int j = 0; j < 2; j++) b.v[j] = b.v[j] * share - less;
        store_f32(grad + i, b, left);
    })
    grad[p->targets[row]] += p->smoothing - 1;
}
