/* Decode attention at one instruction-set level: compiled once per level, as add_norm/kernels.c
 * is.
 *
 * A single query does not fill the tiles of a matrix product, so each query is processed alone,
 * with the features of a head in the lanes of vectors:
 *
 *   1. dot products with the visible keys, KEYS_AT_ONCE at a time for independent accumulators
 *   2. exponentials and their sum, over an array of one weight per key
 *   3. weighted sum of the visible values, BLOCKS_AT_ONCE blocks of features in registers
 *
 * Keys and values are read once, in order: the kernel is bound by memory bandwidth.
 */
#include <math.h>

#include "common/exp.h"
#include "decode_attention/decode_attention.h"

#define NAME_(level) addnorm_decode_attention_##level
#define NAME(level) NAME_(level)

enum { KEYS_AT_ONCE = 4, BLOCKS_AT_ONCE = 4 };

INLINE int64_t valid_lanes(int64_t i, int64_t count) {
    return count - i < BLOCK ? count - i : BLOCK;
}

/* scale * q . k for `count` keys, `stride` apart. */
INLINE void dot_products(const float *q, const float *k, int64_t stride, int64_t dim,
                         const int count, float scale, float *logits) {
    const int64_t whole = dim / BLOCK * BLOCK;
    block total[KEYS_AT_ONCE];
    for (int r = 0; r < count; r++) total[r] = (block){{{0}, {0}}};
#define ADD(i, valid)                                                     \
    do {                                                                  \
        const block x = load_f32(q + (i), valid);                         \
        for (int r = 0; r < count; r++) {                                 \
            const block y = load_f32(k + r * stride + (i), valid);        \
            for (int j = 0; j < 2; j++) total[r].v[j] += x.v[j] * y.v[j]; \
        }                                                                 \
    } while (0)
    for (int64_t i = 0; i < whole; i += BLOCK) ADD(i, BLOCK);
    if (whole < dim) ADD(whole, dim - whole);
#undef ADD
    for (int r = 0; r < count; r++) logits[r] = scale * vsum(total[r].v[0] + total[r].v[1]);
}

/* Replace logits by exp(logit - max_logit); return their sum. */
static float exponentiate(float *weights, int64_t keys, float max_logit) {
    block total = {{{0}, {0}}};
    for (int64_t j = 0; j < keys; j += BLOCK) {
        const int64_t valid = valid_lanes(j, keys);
        block b = load_f32(weights + j, valid);
        for (int n = 0; n < 2; n++) b.v[n] = vexp(b.v[n] - max_logit);
        store_f32(weights + j, b, valid);
        if (valid < BLOCK) b = mask_tail(b, valid);
        for (int n = 0; n < 2; n++) total.v[n] += b.v[n];
    }
    return vsum(total.v[0] + total.v[1]);
}

/* factor * sum of weight * value over the visible keys, for `count` blocks of features. */
INLINE void weighted_sum(const float *v, int64_t stride, const uint8_t *visible,
                         int64_t visible_stride, const float *weights, int64_t keys, int64_t valid,
                         const int count, float factor, float *out) {
    block total[BLOCKS_AT_ONCE];
    for (int r = 0; r < count; r++) total[r] = (block){{{0}, {0}}};
    for (int64_t j = 0; j < keys; j++) {
        if (visible && !visible[j * visible_stride]) continue;
        for (int r = 0; r < count; r++) {
            const block b = load_f32(v + j * stride + r * BLOCK, valid);
            for (int n = 0; n < 2; n++) total[r].v[n] += weights[j] * b.v[n];
        }
    }
    for (int r = 0; r < count; r++) {
        for (int n = 0; n < 2; n++) total[r].v[n] *= factor;
        store_f32(out + r * BLOCK, total[r], valid);
    }
}

static void attend_one_query(const struct addnorm_decode_attention *p, const float *q,
                             const float *k, const float *v, float *out, const uint8_t *visible,
                             float *weights) {
    const int64_t dim = p->head_dim, keys = p->keys, step = p->visible_key_stride;
    float max_logit = -INFINITY, factor;
    int64_t i = 0;
    for (int64_t j = 0; j < keys;) {
        const uint8_t *s = visible ? visible + j * step : NULL;
        const float *key = k + j * p->k.token_stride;
        if (j + KEYS_AT_ONCE <= keys && (!s || (s[0] && s[step] && s[2 * step] && s[3 * step]))) {
            dot_products(q, key, p->k.token_stride, dim, KEYS_AT_ONCE, p->scale, weights + j);
            j += KEYS_AT_ONCE;
            continue;
        }
        weights[j] = -INFINITY;
        if (!s || *s) dot_products(q, key, p->k.token_stride, dim, 1, p->scale, weights + j);
        j++;
    }
    for (int64_t j = 0; j < keys; j++) max_logit = weights[j] > max_logit ? weights[j] : max_logit;
    /* Without a visible key, or if all logits are -inf, the sum and the output are 0. */
    factor = exponentiate(weights, keys, max_logit == -INFINITY ? 0 : max_logit);
    factor = factor == 0 ? 0 : 1 / factor;
    for (; i + BLOCKS_AT_ONCE * BLOCK <= dim; i += BLOCKS_AT_ONCE * BLOCK)
        weighted_sum(v + i, p->v.token_stride, visible, step, weights, keys, BLOCK, BLOCKS_AT_ONCE,
                     factor, out + i);
    for (; i < dim; i += BLOCK)
        weighted_sum(v + i, p->v.token_stride, visible, step, weights, keys, valid_lanes(i, dim), 1,
                     factor, out + i);
}

void NAME(LEVEL)(const struct addnorm_decode_attention *p, int64_t task, float *workspace) {
    const int64_t row = task / p->heads, head = task % p->heads;
    const int64_t kv_head = head / (p->heads / p->kv_heads);
    const float *k = p->k.data + row * p->k.batch_stride + kv_head * p->k.head_stride;
    const float *v = p->v.data + row * p->v.batch_stride + kv_head * p->v.head_stride;
    for (int64_t i = 0; i < p->queries; i++) {
        const float *q = p->q.data + row * p->q.batch_stride + head * p->q.head_stride +
                         i * p->q.token_stride;
        float *out = p->out.data + row * p->out.batch_stride + head * p->out.head_stride +
                     i * p->out.token_stride;
        const uint8_t *visible = p->visible;
        if (visible)
            visible += row * p->visible_batch_stride + head * p->visible_head_stride +
                       i * p->visible_query_stride;
        attend_one_query(p, q, k, v, out, visible, workspace);
    }
}
