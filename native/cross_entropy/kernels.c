/* Cross entropy at one instruction-set level: compiled once per level, as add_norm/kernels.c is.
 *
 * Three passes over a row that stays in the cache: maximum; exponentials, which are stored where
 * the gradient will be; gradient. Sums over up to SUM_CHUNK classes are in float32 vectors, sums
 * over chunks in float64, which keeps the loss of a large vocabulary as exact as in float64.
 */
#include <math.h>

#include "common/exp.h"
#include "cross_entropy/cross_entropy.h"

enum { SUM_CHUNK = 4096 };

#define NAME_(level) addnorm_cross_entropy_##level
#define NAME(level) NAME_(level)

/* Run `call` for each block of the classes `first` to `last`; the last block may be short. */
#define BLOCKS(call)                                                    \
    for (int64_t i = first; i < last; i += BLOCK) {                     \
        const int64_t valid = last - i < BLOCK ? last - i : BLOCK;      \
        call;                                                           \
    }

/* Lanes after the last class are -inf, which is never the maximum and has exponential 0. */
INLINE block load_logits(const float *x, int64_t valid) {
    block b = {{vset(-INFINITY), vset(-INFINITY)}};
    if (valid == BLOCK) return load_f32(x, BLOCK);
    memcpy(&b, x, (size_t)valid * sizeof *x);
    return b;
}

static float row_max(const float *x, int64_t classes) {
    const int64_t first = 0, last = classes;
    vfloat high = vset(-INFINITY);
    float max = -INFINITY;
    BLOCKS({
        const block b = load_logits(x + i, valid);
        high = vmax(b.v[1], vmax(b.v[0], high));
    })
    for (int i = 0; i < LANES; i++) max = high[i] > max ? high[i] : max;
    return max;
}

static double row_mean(const float *x, int64_t classes) {
    double total = 0;
    for (int64_t first = 0; first < classes; first += SUM_CHUNK) {
        const int64_t last = first + SUM_CHUNK < classes ? first + SUM_CHUNK : classes;
        block sums = {{{0}, {0}}};
        BLOCKS({
            const block b = load_f32(x + i, valid);
            for (int j = 0; j < 2; j++) sums.v[j] += b.v[j];
        })
        total += (double)vsum(sums.v[0] + sums.v[1]);
    }
    return total / (double)classes;
}

/* Return the sum of exp(x - max); also store each exponential in `to` unless it is NULL. */
static double exponentiate(const float *x, float *to, float max, int64_t classes) {
    double total = 0;
    for (int64_t first = 0; first < classes; first += SUM_CHUNK) {
        const int64_t last = first + SUM_CHUNK < classes ? first + SUM_CHUNK : classes;
        block sums = {{{0}, {0}}};
        BLOCKS({
            block b = load_logits(x + i, valid);
            for (int j = 0; j < 2; j++) sums.v[j] += b.v[j] = vexp(b.v[j] - max);
            if (to) store_f32(to + i, b, valid);
        })
        total += (double)vsum(sums.v[0] + sums.v[1]);
    }
    return total;
}

void NAME(LEVEL)(const struct addnorm_cross_entropy *p, int64_t row) {
    const int64_t classes = p->classes, first = 0, last = classes;
    const float *x = p->logits + row * classes;
    float *grad = p->grad ? p->grad + row * classes : NULL;
    const float max = row_max(x, classes), uniform = p->smoothing / (float)classes;
    if (p->mean) p->mean[row] = row_mean(x, classes);
    if (p->max) p->max[row] = (double)max;
    const double total = exponentiate(x, grad, max, classes);
    const float inverse = (float)(1 / total);
    p->lse[row] = (double)max + log(total);
    if (grad == NULL) return;
    BLOCKS({
        block b = load_f32(grad + i, valid);
        for (int j = 0; j < 2; j++) b.v[j] = b.v[j] * inverse - uniform;
        store_f32(grad + i, b, valid);
    })
    grad[p->targets[row]] += p->smoothing - 1;
}
