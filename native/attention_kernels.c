/* Attention at one instruction-set level: compiled once a level, as kernels.c is. */
#include <math.h>

#include "attention_levels.h"
#include "powers.h"
#include "products.h"
#include "squares.h"

/* What is worked on at once: chosen so that it stays in the second cache for heads of 64. */
enum {
    CHUNK = 128, /* queries of a task of the forward */
    KEYS = 256,  /* keys between two looks at the top of the softmax */
    SIDE = 128,  /* of the squares of the backward */
    EDGE = SIDE + 16, /* their rows in memory: no power of two, which would share few cache lines */
    THIN = 128,    /* bytes of a head that the processor must be told of before, */
    FETCHED = 64,  /* of no more tokens than so many */
};

/* log2 x for x from 1 to 2^31, to 2e-7; something finite for 0. What is no number stays none.
 * The polynomial is that of Cephes' logf. */
INLINE floats logarithm(floats x) {
    const bits half = (bits){0} + 0x3f3504f3u, shifted = (bits)x - half; /* sqrt(1/2) */
    const floats f = (floats)((shifted & 0x7fffff) + half) - 1;
    floats y = f * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = f + f * f * (y * f - 0.5f);
    return y * LOG2E + __builtin_convertvector((ints)shifted >> 23, floats) + 0 * x;
}

/* In row j the lanes below j - early are queries that do not see the key yet. */
static void hide(float *weights, int64_t row, int64_t seen, int64_t wide, int64_t early) {
    ints place = {0};
    for (int i = 0; i < WIDE; i++) place[i] = i;
    for (int64_t j = early < 0 ? 0 : early + 1; j < seen; j++)
        for (int64_t n = 0; n < least(wide, j - early); n += WIDE) {
            float *at = weights + j * row + n;
            const bits hidden = (bits)(place < (int32_t)least(j - early - n, WIDE));
            put(at, (floats)(((bits)near(at) & ~hidden) | ((bits)all(-INFINITY) & hidden)));
        }
}

/* Logits to 2^(logit - top), with the greatest so far and the sum so far of WIDE queries; returns
 * what earlier sums must be multiplied with. */
INLINE floats soften(float *weights, int64_t seen, float *top, float *total) {
    floats high = near(top), change, sums = {0}, base;
    for (int64_t j = 0; j < seen; j++) high = most(near(weights + j * BLOCK), high);
    /* All of them -inf: no top to subtract, and 0 / 0 at the end unless more keys come. */
    base = (floats)((bits)high & ~(bits)(high == -INFINITY));
    change = power(near(top) - base);
    for (int64_t j = 0; j < seen; j++) {
        const floats p = power(near(weights + j * BLOCK) - base);
        put(weights + j * BLOCK, p);
        sums += p;
    }
    put(top, high);
    put(total, near(total) * change + sums);
    return change;
}

/* From the top and the sum of the softmax: its log2, and what the output is multiplied with. */
INLINE void finish(float *top, float *total, int64_t wide) {
    for (int64_t n = 0; n < wide; n += WIDE) {
        const floats sum = near(total + n);
        put(top + n, near(top + n) + logarithm(sum));
        put(total + n, 1 / sum);
    }
}

/* p and ds from logits and dout . v */
INLINE void slope(float *weights, float *slopes, int64_t row, int64_t seen, floats lse,
                  floats delta) {
    for (int64_t j = 0; j < seen; j++) {
        const floats p = power(near(weights + j * row) - lse);
        put(weights + j * row, p);
        put(slopes + j * row, p * (near(slopes + j * row) - delta));
    }
}

#define X f32
#include "sequences.h"
#undef X
#define X bf16
#include "sequences.h"
#undef X

static int64_t forward_room(const struct addnorm_attention *p, int64_t longest) {
    const int64_t row = up(p->head_dim, BLOCK);
    (void)longest;
    return 2 * CHUNK * row + 2 * KEYS * row + KEYS * BLOCK + 2 * CHUNK;
}

static int64_t backward_room(const struct addnorm_attention *p, int64_t longest) {
    const int64_t row = up(p->head_dim, BLOCK);
    return 8 * SIDE * row + 2 * SIDE * EDGE + 2 * SIDE + longest * (p->heads / p->kv_heads) * row;
}

#define NAME_(level) addnorm_attention_##level
#define NAME(level) NAME_(level)

const struct addnorm_attention_level NAME(LEVEL) = {
    .chunk = CHUNK,
    .forward_room = forward_room,
    .backward_room = backward_room,
    .forward = {attend_f32, attend_bf16},
    .backward = {attend_back_f32, attend_back_bf16},
};
