/* Attention at one instruction-set level: the softmax, and the sizes of the blocks.
 *
 * Compiled once per level, as add_norm/kernels.c is. Logits are kept in base 2: scale * log2(e) is
 * multiplied into the queries, so that exp becomes the cheaper exp2. A tile of logits is stored as
 * (keys, queries), with LANES queries in the lanes of a vector. The softmax over keys then runs
 * down the rows of the tile and never across lanes.
 */
#include <math.h>

#include "attention/isa_levels.h"
#include "common/exp.h"
#include "common/matmul.h"
#include "common/transpose_tile.h"

/* Block sizes: with heads of 64 features the blocks in use fit into the second-level cache. */
enum {
    QUERY_CHUNK = 128,   /* queries of a forward task */
    KEY_CHUNK = 256,     /* keys between two updates of the running softmax */
    BACKWARD_TILE = 128, /* queries and keys of a tile of the backward */
    /* Row stride of such a tile: with a power of two, its rows would compete for few cache sets. */
    BACKWARD_STRIDE = BACKWARD_TILE + 16,
    /* Prefetch the next task's tokens if a head has no more bytes, and no more tokens than that. */
    PREFETCH_MAX_BYTES = 128,
    PREFETCH_MAX_TOKENS = 64,
};

/* log2(x) for x from 1 to 2^31, error 2e-7; finite for 0, NaN for NaN. The polynomial is that of
 * Cephes' logf. */
INLINE vfloat vlog2(vfloat x) {
    const vuint half = (vuint){0} + 0x3f3504f3u, shifted = (vuint)x - half; /* sqrt(1/2) */
    const vfloat f = (vfloat)((shifted & 0x7fffff) + half) - 1;
    vfloat y = f * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = f + f * f * (y * f - 0.5f);
    return y * LOG2E + __builtin_convertvector((vint)shifted >> 23, vfloat) + 0 * x;
}

/* Causal mask of a tile (visible, lanes): query n sees key j if j <= n + diagonal. Set the others
 * to -inf: in row j the lanes below j - diagonal. */
static void mask_future_keys(float *logits, int64_t stride, int64_t visible, int64_t lanes,
                             int64_t diagonal) {
    vint lane = {0};
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t j = diagonal < 0 ? 0 : diagonal + 1; j < visible; j++)
        for (int64_t n = 0; n < min(lanes, j - diagonal); n += LANES) {
            float *at = logits + j * stride + n;
            const vuint hidden = (vuint)(lane < (int32_t)min(j - diagonal - n, LANES));
            vstore(at, (vfloat)(((vuint)vload(at) & ~hidden) | ((vuint)vset(-INFINITY) & hidden)));
        }
}

/* One step of the online softmax for LANES queries: update the running maximum and the running sum
 * with `visible` more keys, and turn their logits into 2^(logit - maximum) in place. Return the
 * factor by which earlier outputs must be multiplied. */
INLINE vfloat update_softmax(float *logits, int64_t visible, float *max_logit, float *exp_sum) {
    vfloat high = vload(max_logit), rescale, sums = {0}, base;
    for (int64_t j = 0; j < visible; j++) high = vmax(vload(logits + j * BLOCK), high);
    /* If all logits are -inf, subtract 0: -inf - -inf would be NaN. The sum stays 0, and the output
     * is 0 / 0 unless later keys contribute. */
    base = (vfloat)((vuint)high & ~(vuint)(high == -INFINITY));
    rescale = vexp2(vload(max_logit) - base);
    for (int64_t j = 0; j < visible; j++) {
        const vfloat p = vexp2(vload(logits + j * BLOCK) - base);
        vstore(logits + j * BLOCK, p);
        sums += p;
    }
    vstore(max_logit, high);
    vstore(exp_sum, vload(exp_sum) * rescale + sums);
    return rescale;
}

/* Replace the maximum by log2 of the softmax denominator, and the sum by its reciprocal. */
INLINE void finish_softmax(float *max_logit, float *exp_sum, int64_t lanes) {
    for (int64_t n = 0; n < lanes; n += LANES) {
        const vfloat sum = vload(exp_sum + n);
        vstore(max_logit + n, vload(max_logit + n) + vlog2(sum));
        vstore(exp_sum + n, 1 / sum);
    }
}

/* Replace logits by probabilities p, and dp = dout . v by ds = p * (dp - delta). */
INLINE void softmax_backward(float *logits, float *dp, int64_t stride, int64_t visible, vfloat lse,
                             vfloat delta) {
    for (int64_t j = 0; j < visible; j++) {
        const vfloat p = vexp2(vload(logits + j * stride) - lse);
        vstore(logits + j * stride, p);
        vstore(dp + j * stride, p * (vload(dp + j * stride) - delta));
    }
}

#define X f32
#include "attention/sequence_kernels.h"
#undef X
#define X bf16
#include "attention/sequence_kernels.h"
#undef X

static int64_t forward_workspace(const struct addnorm_attention *p, int64_t max_length) {
    const int64_t row = round_up(p->head_dim, BLOCK);
    (void)max_length;
    return 2 * QUERY_CHUNK * row + 2 * KEY_CHUNK * row + KEY_CHUNK * BLOCK + 2 * QUERY_CHUNK;
}

static int64_t backward_workspace(const struct addnorm_attention *p, int64_t max_length) {
    const int64_t row = round_up(p->head_dim, BLOCK);
    return 8 * BACKWARD_TILE * row + 2 * BACKWARD_TILE * BACKWARD_STRIDE + 2 * BACKWARD_TILE +
           max_length * (p->heads / p->kv_heads) * row;
}

#define NAME_(level) addnorm_attention_##level
#define NAME(level) NAME_(level)

const struct addnorm_attention_level NAME(LEVEL) = {
    .query_chunk = QUERY_CHUNK,
    .forward_workspace = forward_workspace,
    .backward_workspace = backward_workspace,
    .forward = {attend_forward_f32, attend_forward_bf16},
    .backward = {attend_backward_f32, attend_backward_bf16},
};
