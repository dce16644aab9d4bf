/* Attention within one sequence, for one type: included by attention_kernels.c with X defined.
 *
 * Queries stand in the lanes of vectors and keys below each other, so that the softmax never looks
 * across a vector: what is held is (keys, queries), and Q is what gets turned. */

#include "turn.h"

#define STORE PASTE(store, X)
#define ROUND PASTE(round, X)

/* One call for each block of `dim` features from 0; the last may be short. */
#define BLOCKS(call)                                              \
    do {                                                          \
        int64_t i = 0;                                            \
        for (; i + BLOCK <= dim; i += BLOCK) call(i, BLOCK);      \
        if (i < dim) call(i, dim - i);                            \
    } while (0)

INLINE X *NAME(head)(struct addnorm_heads heads, int64_t head, int64_t token) {
    return (X *)heads.at + head * heads.head + token * heads.token;
}

/* `count` tokens as rows of float32, read where they stand if they are such; `whole`: rows are
 * wanted with whole vectors. */
INLINE struct panels NAME(rows)(const X *from, int64_t step, int64_t count, int64_t dim, int whole,
                                float *room) {
    const int64_t row = up(dim, BLOCK);
    if (sizeof(X) == sizeof(float) && !(whole && dim % WIDE))
        return (struct panels){(const float *)from, step, BLOCK};
#define COPY(i, left) store_f32(room + t * row + (i), LOAD(from + t * step + (i), left), BLOCK)
    for (int64_t t = 0; t < count; t++) BLOCKS(COPY);
#undef COPY
    return (struct panels){room, row, BLOCK};
}

/* Where the sums of some tokens are made: in `room`, or in their place if it can hold them. */
INLINE struct square NAME(place)(X *to, int64_t step, int64_t dim, float *room) {
    if (sizeof(X) == sizeof(float) && dim % WIDE == 0)
        return (struct square){.at = (float *)to, .row = step};
    return (struct square){.at = room, .row = up(dim, BLOCK)};
}

/* Sums times a factor each, if `factors`, into their place. */
static void NAME(write)(X *to, int64_t step, int64_t count, int64_t dim, struct square from,
                        const float *factors) {
    if (!factors && (void *)to == (void *)from.at) return;
    for (int64_t t = 0; t < count; t++) {
        const floats by = all(factors ? factors[t] : 1);
#define SCALE(i, left)                                                            \
    do {                                                                          \
        block b = load_f32(from.at + t * from.row + (i), left);                  \
        for (int n = 0; n < 2; n++) b.v[n] *= by;                                 \
        STORE(to + t * step + (i), ROUND(b), left);                               \
    } while (0)
        BLOCKS(SCALE);
#undef SCALE
    }
}

static void NAME(clear)(struct addnorm_heads heads, int64_t head, int64_t token, int64_t count,
                        int64_t dim) {
    for (int64_t t = 0; t < count; t++)
        memset(NAME(head)(heads, head, token + t), 0, (size_t)dim * sizeof(X));
}

/* Tells the processor what the next task of one thread will read and write: where a head has few
 * features, tokens lie too far apart for it to foresee them. */
INLINE void NAME(fetch)(struct addnorm_heads heads, int64_t head, const int32_t *starts, int64_t b,
                        int64_t dim) {
    const int64_t last = starts[b] + least(FETCHED, starts[b + 1] - starts[b]);
    for (int64_t t = starts[b]; t < last; t++)
        for (int64_t i = 0; i < dim; i += 64 / (int64_t)sizeof(X))
            __builtin_prefetch(NAME(head)(heads, head, t) + i);
}

/* A chunk of the queries of one sequence and head: softmax over the keys, some at a time. */
static void NAME(attend)(const struct addnorm_attention *p, int64_t task, float *room) {
    const int64_t dim = p->head_dim, row = up(dim, BLOCK), columns = up(dim, WIDE);
    const int64_t h = task % p->heads, b = task / p->heads % p->batch;
    const int64_t shared = h / (p->heads / p->kv_heads);
    const int64_t first = task / p->heads / p->batch * CHUNK; /* in the sequence */
    const int64_t start = p->query_starts[b] + first, from = p->key_starts[b];
    const int64_t count = least(CHUNK, p->query_starts[b + 1] - start);
    const int64_t keys = p->key_starts[b + 1] - from;
    float *turned = room, *sums = turned + CHUNK * dim, *k_room = sums + CHUNK * row;
    float *v_room = k_room + KEYS * row, *weights = v_room + KEYS * row;
    float *top = weights + KEYS * BLOCK, *total = top + CHUNK;
    const int once = keys <= KEYS;
    const int64_t next = h + 1 < p->heads ? h + 1 : 0, then = next ? b : b + 1;
    X *to = NAME(head)(p->out, h, start);
    const struct square out = NAME(place)(to, p->out.token, dim, sums);
    struct panels q;
    if (count <= 0) return;
    if (dim * sizeof(X) <= THIN && then < p->batch) {
        const int64_t its = next / (p->heads / p->kv_heads);
        NAME(fetch)(p->q, next, p->query_starts, then, dim);
        NAME(fetch)(p->k, its, p->key_starts, then, dim);
        NAME(fetch)(p->v, its, p->key_starts, then, dim);
        NAME(fetch)(p->out, next, p->query_starts, then, dim);
    }
    if (keys == 0) {
        NAME(clear)(p->out, h, start, count, dim);
        memset(p->lse + h * p->queries + start, 0, (size_t)count * sizeof(float));
        return;
    }
    q = NAME(turn)(NAME(head)(p->q, h, start), p->q.token, count, dim, p->scale * LOG2E, turned);
    for (int64_t i = 0; i < up(count, WIDE); i++) top[i] = -INFINITY, total[i] = 0;
    for (int64_t done = 0; done < keys; done += KEYS) {
        const int64_t near_keys = least(KEYS, keys - done);
        /* Query i of the chunk sees key j of these if j <= i + early. */
        const int64_t early = p->causal ? first - done : NEVER;
        struct panels k, v;
        if (early + count <= 0) break;
        k = NAME(rows)(NAME(head)(p->k, shared, from + done), p->k.token, near_keys, dim, 0, k_room);
        v = NAME(rows)(NAME(head)(p->v, shared, from + done), p->v.token, near_keys, dim, 1, v_room);
        for (int64_t i = 0; i < count; i += BLOCK) {
            const int64_t some = least(BLOCK, count - i), wide = up(some, WIDE);
            const int64_t seen = least(near_keys, i + some + early);
            float *at = out.at + i * out.row, change[BLOCK];
            if (seen <= 0) continue;
            product(seen, wide, dim, (struct thin){.at = k.at, .row = k.row},
                    (struct panels){q.at + i / BLOCK * q.panel, q.row, 0},
                    (struct square){.at = weights, .row = BLOCK}, NEVER, NEVER);
            if (p->causal) hide(weights, BLOCK, seen, wide, i + early);
            for (int64_t n = 0; n < wide; n += WIDE)
                put(change + n, soften(weights + n, seen, top + i + n, total + i + n));
            if (once) finish(top + i, total + i, wide);
            if (done)
                for (int64_t t = 0; t < some; t++)
                    for (int64_t n = 0; n < columns; n += WIDE)
                        put(at + t * out.row + n, near(at + t * out.row + n) * change[t]);
            product(some, columns, seen, (struct thin){.at = weights, .row = BLOCK, .turned = 1}, v,
                    (struct square){.at = at,
                                    .row = out.row,
                                    .add = done > 0,
                                    .factors = once ? total + i : 0}, NEVER, i + early);
        }
    }
    if (!once) finish(top, total, up(count, WIDE));
    memcpy(p->lse + h * p->queries + start, top, (size_t)count * sizeof(float));
    NAME(write)(to, p->out.token, count, dim, out, once ? 0 : total);
}

/* delta_i = scale * out_i . dout_i, which is the sum over j of p_ij * dp_ij */
static void NAME(deltas)(const struct addnorm_attention *p, int64_t h, int64_t start, int64_t count,
                         float *delta) {
    const int64_t dim = p->head_dim;
    for (int64_t t = 0; t < count; t++) {
        const X *out = NAME(head)(p->out, h, start + t), *dout = NAME(head)(p->dout, h, start + t);
        floats total = {0};
#define DOT(i, left)                                                  \
    do {                                                              \
        block a = LOAD(out + (i), left), b = LOAD(dout + (i), left);  \
        for (int n = 0; n < 2; n++) total += a.v[n] * b.v[n];         \
    } while (0)
        BLOCKS(DOT);
#undef DOT
        delta[t] = sum(total) * p->scale;
    }
}

/* One sequence, one head of keys and those of queries that share it:
 *   dp_ij = scale * dout_i . v_j,  ds_ij = p_ij * (dp_ij - delta_i)
 *   dq_i = sum of ds_ij k_j,  dk_j = sum of ds_ij q_i,  dv_j = sum of p_ij dout_i */
static void NAME(attend_back)(const struct addnorm_attention *p, int64_t task, float *room) {
    const int64_t dim = p->head_dim, row = up(dim, BLOCK), columns = up(dim, WIDE);
    const int64_t shared = task % p->kv_heads, b = task / p->kv_heads;
    const int64_t group = p->heads / p->kv_heads, one = shared * group;
    const int64_t start = p->query_starts[b], queries = p->query_starts[b + 1] - start;
    const int64_t from = p->key_starts[b], keys = p->key_starts[b + 1] - from;
    const int64_t side = SIDE * row;
    float *q_turned = room, *g_turned = q_turned + side, *q_room = g_turned + side;
    float *g_room = q_room + side, *k_room = g_room + side, *v_room = k_room + side;
    float *dk_room = v_room + side, *dv_room = dk_room + side, *weights = dv_room + side;
    float *slopes = weights + SIDE * EDGE;
    float *lse = slopes + SIDE * EDGE, *delta = lse + SIDE, *dq_room = delta + SIDE;
    const int64_t next = shared + 1 < p->kv_heads ? shared + 1 : 0, then = next ? b : b + 1;
    if (dim * sizeof(X) <= THIN && then < p->batch) {
        NAME(fetch)(p->k, next, p->key_starts, then, dim);
        NAME(fetch)(p->v, next, p->key_starts, then, dim);
        NAME(fetch)(p->dk, next, p->key_starts, then, dim);
        NAME(fetch)(p->dv, next, p->key_starts, then, dim);
        NAME(fetch)(p->q, next * group, p->query_starts, then, dim);
        NAME(fetch)(p->out, next * group, p->query_starts, then, dim);
        NAME(fetch)(p->dout, next * group, p->query_starts, then, dim);
        NAME(fetch)(p->dq, next * group, p->query_starts, then, dim);
    }
    if (keys == 0)
        for (int64_t h = one; h < one + group; h++) NAME(clear)(p->dq, h, start, queries, dim);
    if (queries == 0) {
        NAME(clear)(p->dk, shared, from, keys, dim);
        NAME(clear)(p->dv, shared, from, keys, dim);
    }
    if (keys == 0 || queries == 0) return;
    for (int64_t done = 0; done < keys; done += SIDE) {
        const int64_t near_keys = least(SIDE, keys - done);
        const struct panels
            k = NAME(rows)(NAME(head)(p->k, shared, from + done), p->k.token, near_keys, dim, 1,
                           k_room),
            v = NAME(rows)(NAME(head)(p->v, shared, from + done), p->v.token, near_keys, dim, 0,
                           v_room);
        X *dk_to = NAME(head)(p->dk, shared, from + done);
        X *dv_to = NAME(head)(p->dv, shared, from + done);
        struct square dk = NAME(place)(dk_to, p->dk.token, dim, dk_room);
        struct square dv = NAME(place)(dv_to, p->dv.token, dim, dv_room);
        for (int64_t h = one; h < one + group; h++)
            for (int64_t first = p->causal ? done : 0; first < queries; first += SIDE) {
                const int64_t count = least(SIDE, queries - first), at = start + first;
                const int64_t early = p->causal ? first - done : NEVER;
                const int64_t late = early; /* key j is seen from query j - late on */
                const int64_t edge = up(count, BLOCK) + (count > SIDE / 2 ? 16 : 0);
                const X *queries_at = NAME(head)(p->q, h, at), *g_at = NAME(head)(p->dout, h, at);
                const struct panels
                    q = NAME(rows)(queries_at, p->q.token, count, dim, 1, q_room),
                    g = NAME(rows)(g_at, p->dout.token, count, dim, 1, g_room),
                    qt = NAME(turn)(queries_at, p->q.token, count, dim, p->scale * LOG2E, q_turned),
                    gt = NAME(turn)(g_at, p->dout.token, count, dim, p->scale, g_turned);
                struct square dq = NAME(place)(NAME(head)(p->dq, h, at), p->dq.token, dim,
                                               dq_room + ((h - one) * queries + first) * row);
                dq.add = done > 0;
                for (int64_t i = count; i < up(count, WIDE); i++) lse[i] = delta[i] = 0;
                memcpy(lse, p->lse + h * p->queries + at, (size_t)count * sizeof(float));
                NAME(deltas)(p, h, at, count, delta);
                for (int64_t i = 0; i < count; i += BLOCK) {
                    const int64_t some = least(BLOCK, count - i), wide = up(some, WIDE);
                    const int64_t seen = least(near_keys, i + some + early);
                    const int64_t panel = i / BLOCK;
                    product(seen, wide, dim, (struct thin){.at = k.at, .row = k.row},
                            (struct panels){qt.at + panel * qt.panel, qt.row, 0},
                            (struct square){.at = weights + i, .row = edge}, NEVER, NEVER);
                    product(seen, wide, dim, (struct thin){.at = v.at, .row = v.row},
                            (struct panels){gt.at + panel * gt.panel, gt.row, 0},
                            (struct square){.at = slopes + i, .row = edge}, NEVER, NEVER);
                    if (p->causal) hide(weights + i, edge, seen, wide, i + early);
                    for (int64_t n = i; n < i + wide; n += WIDE)
                        slope(weights + n, slopes + n, edge, seen, near(lse + n), near(delta + n));
                    /* What a strip of rows reads beyond the triangle. */
                    for (int64_t j = seen; j < least(near_keys, seen + TALLEST); j++)
                        for (int64_t n = i; n < i + wide; n++)
                            weights[j * edge + n] = slopes[j * edge + n] = 0;
                }
                product(near_keys, columns, count, (struct thin){.at = weights, .row = edge}, g, dv,
                        late, NEVER);
                product(near_keys, columns, count, (struct thin){.at = slopes, .row = edge}, q, dk, late,
                        NEVER);
                product(count, columns, near_keys,
                        (struct thin){.at = slopes, .row = edge, .turned = 1}, k, dq, NEVER, early);
                dk.add = dv.add = 1;
            }
        NAME(write)(dk_to, p->dk.token, near_keys, dim, dk, 0);
        NAME(write)(dv_to, p->dv.token, near_keys, dim, dv, 0);
    }
    for (int64_t h = one; h < one + group; h++) {
        X *dq_to = NAME(head)(p->dq, h, start);
        NAME(write)(dq_to, p->dq.token, queries, dim,
                    NAME(place)(dq_to, p->dq.token, dim, dq_room + (h - one) * queries * row), 0);
    }
}

#undef PASTE_
#undef PASTE
#undef LOAD
#undef STORE
#undef ROUND
#undef LOAD4
#undef BLOCKS
#undef NAME
