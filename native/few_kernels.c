/* Attention of few queries at one instruction-set level: compiled once a level, as kernels.c is. */
#include <math.h>

#include "few.h"
#include "powers.h"

#define NAME_(level) addnorm_look_##level
#define NAME(level) NAME_(level)

enum { KEYS = 4, WIDTH = 4 }; /* keys, and blocks of features, that are worked on at once */

INLINE int64_t there(int64_t i, int64_t count) { return count - i < BLOCK ? count - i : BLOCK; }

/* q . k of `count` keys that stand next to each other: several at once, while sums are made. */
INLINE void dots(const float *q, const float *k, int64_t step, int64_t dim, const int count,
                 float scale, float *logits) {
    const int64_t whole = dim / BLOCK * BLOCK;
    block total[KEYS];
    for (int r = 0; r < count; r++) total[r] = (block){{{0}, {0}}};
#define ADD(i, left)                                                  \
    do {                                                              \
        const block x = load_f32(q + (i), left);                      \
        for (int r = 0; r < count; r++) {                             \
            const block y = load_f32(k + r * step + (i), left);       \
            for (int j = 0; j < 2; j++) total[r].v[j] += x.v[j] * y.v[j]; \
        }                                                             \
    } while (0)
    for (int64_t i = 0; i < whole; i += BLOCK) ADD(i, BLOCK);
    if (whole < dim) ADD(whole, dim - whole);
#undef ADD
    for (int r = 0; r < count; r++) logits[r] = scale * sum(total[r].v[0] + total[r].v[1]);
}

/* Logits to exp(logit - top) in place; their sum. */
static float soften(float *weights, int64_t keys, float top) {
    block total = {{{0}, {0}}};
    for (int64_t j = 0; j < keys; j += BLOCK) {
        const int64_t left = there(j, keys);
        block b = load_f32(weights + j, left);
        for (int n = 0; n < 2; n++) b.v[n] = exponential(b.v[n] - top);
        store_f32(weights + j, b, left);
        if (left < BLOCK) b = cut(b, left);
        for (int n = 0; n < 2; n++) total.v[n] += b.v[n];
    }
    return sum(total.v[0] + total.v[1]);
}

/* Features i and on of the mixed values, `count` blocks of them. */
INLINE void mix(const float *v, int64_t step, const uint8_t *seen, int64_t seen_step,
                const float *weights, int64_t keys, int64_t left, const int count, float share,
                float *out) {
    block total[WIDTH];
    for (int r = 0; r < count; r++) total[r] = (block){{{0}, {0}}};
    for (int64_t j = 0; j < keys; j++) {
        if (seen && !seen[j * seen_step]) continue;
        for (int r = 0; r < count; r++) {
            const block b = load_f32(v + j * step + r * BLOCK, left);
            for (int n = 0; n < 2; n++) total[r].v[n] += weights[j] * b.v[n];
        }
    }
    for (int r = 0; r < count; r++) {
        for (int n = 0; n < 2; n++) total[r].v[n] *= share;
        store_f32(out + r * BLOCK, total[r], left);
    }
}

static void one(const struct addnorm_few *p, const float *q, const float *k, const float *v,
                float *out, const uint8_t *seen, float *weights) {
    const int64_t dim = p->head_dim, keys = p->keys, step = p->seen_key;
    float top = -INFINITY, share;
    int64_t i = 0;
    for (int64_t j = 0; j < keys;) {
        const uint8_t *s = seen ? seen + j * step : NULL;
        const float *at = k + j * p->k.token;
        if (j + KEYS <= keys && (!s || (s[0] && s[step] && s[2 * step] && s[3 * step]))) {
            dots(q, at, p->k.token, dim, KEYS, p->scale, weights + j);
            j += KEYS;
            continue;
        }
        weights[j] = -INFINITY;
        if (!s || *s) dots(q, at, p->k.token, dim, 1, p->scale, weights + j);
        j++;
    }
    for (int64_t j = 0; j < keys; j++) top = weights[j] > top ? weights[j] : top;
    share = soften(weights, keys, top == -INFINITY ? 0 : top); /* which sees nothing, or -inf */
    share = share == 0 ? 0 : 1 / share;
    for (; i + WIDTH * BLOCK <= dim; i += WIDTH * BLOCK)
        mix(v + i, p->v.token, seen, step, weights, keys, BLOCK, WIDTH, share, out + i);
    for (; i < dim; i += BLOCK)
        mix(v + i, p->v.token, seen, step, weights, keys, there(i, dim), 1, share, out + i);
}

void NAME(LEVEL)(const struct addnorm_few *p, int64_t task, float *room) {
    const int64_t row = task / p->heads, head = task % p->heads;
    const int64_t shared = head / (p->heads / p->kv_heads);
    const float *k = p->k.at + row * p->k.row + shared * p->k.head;
    const float *v = p->v.at + row * p->v.row + shared * p->v.head;
    for (int64_t i = 0; i < p->queries; i++) {
        const float *q = p->q.at + row * p->q.row + head * p->q.head + i * p->q.token;
        float *out = p->out.at + row * p->out.row + head * p->out.head + i * p->out.token;
        const uint8_t *seen = p->seen;
        if (seen) seen += row * p->seen_row + head * p->seen_head + i * p->seen_query;
        one(p, q, k, v, out, seen, room);
    }
}
