/* Attention within one sequence, for one dtype: included by kernels.c with X (f32 or bf16)
 * defined.
 *
 * Forward (FlashAttention). The queries of a chunk are transposed once into panels. For each chunk
 * of keys and each block of queries:
 *
 *   logits (keys, queries) = K Q^T          matmul: K row by row, Q in panels
 *   p = 2^(logits - running maximum)        update_softmax
 *   out = rescale * out + p^T V             matmul with p transposed
 *
 * and out is divided by the sum of p at the end. The logits of all keys never exist at once.
 *
 * Backward. Tiles of BACKWARD_TILE keys and queries recompute p from q, k and lse:
 *
 *   dp_ij = scale * dout_i . v_j,    ds_ij = p_ij * (dp_ij - delta_i)
 *   dq_i = sum of ds_ij k_j,    dk_j = sum of ds_ij q_i,    dv_j = sum of p_ij dout_i
 *
 * Under a causal mask, matmul skips the part of a tile above the diagonal (see its bands).
 */

#include "common/pack_panels.h"

#define STORE PASTE(store, X)
#define ROUND PASTE(round, X)

/* Apply `call` to each block of the `dim` features; the last block may be short. */
#define BLOCKS(call)                                                    \
    do {                                                                \
        int64_t i = 0;                                                  \
        for (; i + BLOCK <= dim; i += BLOCK) call(i, BLOCK);            \
        if (i < dim) call(i, dim - i);                                  \
    } while (0)

INLINE X *NAME(token)(struct addnorm_heads view, int64_t head, int64_t token) {
    return (X *)view.data + head * view.head_stride + token * view.token_stride;
}

/* Return `count` tokens as rows of float32. They are read in place if they are float32 already and,
 * with `whole_vectors`, if rows end with a whole vector; otherwise they are copied to `buffer`. */
INLINE struct panels NAME(float_rows)(const X *from, int64_t stride, int64_t count, int64_t dim,
                                      int whole_vectors, float *buffer) {
    const int64_t row = round_up(dim, BLOCK);
    if (sizeof(X) == sizeof(float) && !(whole_vectors && dim % LANES))
        return (struct panels){(const float *)from, stride, BLOCK};
#define COPY(i, valid)                                                  \
    store_f32(buffer + t * row + (i), LOAD(from + t * stride + (i), valid), BLOCK)
    for (int64_t t = 0; t < count; t++) BLOCKS(COPY);
#undef COPY
    return (struct panels){buffer, row, BLOCK};
}

/* Return where sums for some tokens accumulate: in their final place if that holds whole vectors of
 * float32, otherwise in `buffer`. */
INLINE struct output NAME(accumulator)(X *to, int64_t stride, int64_t dim, float *buffer) {
    if (sizeof(X) == sizeof(float) && dim % LANES == 0)
        return (struct output){.data = (float *)to, .row_stride = stride};
    return (struct output){.data = buffer, .row_stride = round_up(dim, BLOCK)};
}

/* Round the sums of an accumulator into their final place, times one factor per token if given. */
static void NAME(write_tokens)(X *to, int64_t stride, int64_t count, int64_t dim,
                               struct output from, const float *factors) {
    if (!factors && (void *)to == (void *)from.data) return;
    for (int64_t t = 0; t < count; t++) {
        const vfloat factor = vset(factors ? factors[t] : 1);
#define SCALE(i, valid)                                                   \
    do {                                                                  \
        block b = load_f32(from.data + t * from.row_stride + (i), valid); \
        for (int n = 0; n < 2; n++) b.v[n] *= factor;                     \
        STORE(to + t * stride + (i), ROUND(b), valid);                    \
    } while (0)
        BLOCKS(SCALE);
#undef SCALE
    }
}

static void NAME(clear_tokens)(struct addnorm_heads view, int64_t head, int64_t token,
                               int64_t count, int64_t dim) {
    for (int64_t t = 0; t < count; t++)
        memset(NAME(token)(view, head, token + t), 0, (size_t)dim * sizeof(X));
}

/* Prefetch the tokens of the task that one thread would run next. Where a head has few features,
 * its tokens are too far apart for the hardware prefetcher. */
INLINE void NAME(prefetch_tokens)(struct addnorm_heads view, int64_t head, const int32_t *starts,
                                  int64_t b, int64_t dim) {
    const int64_t last = starts[b] + min(PREFETCH_MAX_TOKENS, starts[b + 1] - starts[b]);
    for (int64_t t = starts[b]; t < last; t++)
        for (int64_t i = 0; i < dim; i += 64 / (int64_t)sizeof(X))
            __builtin_prefetch(NAME(token)(view, head, t) + i);
}

/* Forward of one chunk of the queries of one sequence and head. */
static void NAME(attend_forward)(const struct addnorm_attention *p, int64_t task,
                                 float *workspace) {
    const int64_t dim = p->head_dim, row = round_up(dim, BLOCK), columns = round_up(dim, LANES);
    const int64_t h = task % p->heads, b = task / p->heads % p->batch;
    const int64_t kv_head = h / (p->heads / p->kv_heads);
    const int64_t first = task / p->heads / p->batch * QUERY_CHUNK; /* in the sequence */
    const int64_t query_start = p->query_starts[b] + first, key_start = p->key_starts[b];
    const int64_t count = min(QUERY_CHUNK, p->query_starts[b + 1] - query_start);
    const int64_t keys = p->key_starts[b + 1] - key_start;
    float *q_buffer = workspace, *out_buffer = q_buffer + QUERY_CHUNK * dim;
    float *k_buffer = out_buffer + QUERY_CHUNK * row, *v_buffer = k_buffer + KEY_CHUNK * row;
    float *logits = v_buffer + KEY_CHUNK * row;
    float *max_logit = logits + KEY_CHUNK * BLOCK, *exp_sum = max_logit + QUERY_CHUNK;
    const int single_chunk = keys <= KEY_CHUNK; /* of keys: the softmax is final after it */
    const int64_t next_head = h + 1 < p->heads ? h + 1 : 0, next_b = next_head ? b : b + 1;
    X *out_tokens = NAME(token)(p->out, h, query_start);
    const struct output out = NAME(accumulator)(out_tokens, p->out.token_stride, dim, out_buffer);
    struct panels q;
    if (count <= 0) return; /* this sequence is shorter than the longest */
    if (dim * sizeof(X) <= PREFETCH_MAX_BYTES && next_b < p->batch) {
        const int64_t next_kv_head = next_head / (p->heads / p->kv_heads);
        NAME(prefetch_tokens)(p->q, next_head, p->query_starts, next_b, dim);
        NAME(prefetch_tokens)(p->k, next_kv_head, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->v, next_kv_head, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->out, next_head, p->query_starts, next_b, dim);
    }
    if (keys == 0) {
        NAME(clear_tokens)(p->out, h, query_start, count, dim);
        memset(p->lse + h * p->queries + query_start, 0, (size_t)count * sizeof(float));
        return;
    }
    q = NAME(transpose)(NAME(token)(p->q, h, query_start), p->q.token_stride, count, dim,
                        p->scale * LOG2E, q_buffer);
    for (int64_t i = 0; i < round_up(count, LANES); i++) max_logit[i] = -INFINITY, exp_sum[i] = 0;
    for (int64_t done = 0; done < keys; done += KEY_CHUNK) {
        const int64_t num_keys = min(KEY_CHUNK, keys - done);
        /* Query i of this chunk sees key j of that chunk if j <= i + diagonal. */
        const int64_t diagonal = p->causal ? first - done : FULL_BAND;
        struct panels k, v;
        if (diagonal + count <= 0) break;
        k = NAME(float_rows)(NAME(token)(p->k, kv_head, key_start + done), p->k.token_stride,
                             num_keys, dim, 0, k_buffer);
        v = NAME(float_rows)(NAME(token)(p->v, kv_head, key_start + done), p->v.token_stride,
                             num_keys, dim, 1, v_buffer);
        for (int64_t i = 0; i < count; i += BLOCK) {
            const int64_t num_queries = min(BLOCK, count - i), lanes = round_up(num_queries, LANES);
            const int64_t visible = min(num_keys, i + num_queries + diagonal);
            float *out_rows = out.data + i * out.row_stride, rescale[BLOCK];
            if (visible <= 0) continue;
            matmul(visible, lanes, dim, (struct lhs){.data = k.data, .row_stride = k.row_stride},
                   (struct panels){q.data + i / BLOCK * q.panel_stride, q.row_stride, 0},
                   (struct output){.data = logits, .row_stride = BLOCK}, FULL_BAND, FULL_BAND);
            if (p->causal) mask_future_keys(logits, BLOCK, visible, lanes, i + diagonal);
            for (int64_t n = 0; n < lanes; n += LANES)
                vstore(rescale + n, update_softmax(logits + n, visible, max_logit + i + n,
                                                   exp_sum + i + n));
            if (single_chunk) finish_softmax(max_logit + i, exp_sum + i, lanes);
            if (done)
                for (int64_t t = 0; t < num_queries; t++)
                    for (int64_t n = 0; n < columns; n += LANES) {
                        float *at = out_rows + t * out.row_stride + n;
                        vstore(at, vload(at) * rescale[t]);
                    }
            matmul(num_queries, columns, visible,
                   (struct lhs){.data = logits, .row_stride = BLOCK, .transposed = 1}, v,
                   (struct output){.data = out_rows,
                                   .row_stride = out.row_stride,
                                   .accumulate = done > 0,
                                   .row_factors = single_chunk ? exp_sum + i : 0},
                   FULL_BAND, i + diagonal);
        }
    }
    if (!single_chunk) finish_softmax(max_logit, exp_sum, round_up(count, LANES));
    memcpy(p->lse + h * p->queries + query_start, max_logit, (size_t)count * sizeof(float));
    NAME(write_tokens)(out_tokens, p->out.token_stride, count, dim, out,
                       single_chunk ? 0 : exp_sum);
}

/* delta_i = scale * out_i . dout_i, which equals the sum over j of p_ij * dp_ij. */
static void NAME(compute_deltas)(const struct addnorm_attention *p, int64_t h, int64_t start,
                                 int64_t count, float *delta) {
    const int64_t dim = p->head_dim;
    for (int64_t t = 0; t < count; t++) {
        const X *out = NAME(token)(p->out, h, start + t);
        const X *dout = NAME(token)(p->dout, h, start + t);
        vfloat total = {0};
#define DOT(i, valid)                                                   \
    do {                                                                \
        block a = LOAD(out + (i), valid), b = LOAD(dout + (i), valid);  \
        for (int n = 0; n < 2; n++) total += a.v[n] * b.v[n];           \
    } while (0)
        BLOCKS(DOT);
#undef DOT
        delta[t] = vsum(total) * p->scale;
    }
}

/* Backward of one sequence and key head, with the `group` query heads that share it. dk and dv of
 * a tile of keys accumulate over these heads and over all queries; dq accumulates over tiles of
 * keys in a buffer for the whole sequence. */
static void NAME(attend_backward)(const struct addnorm_attention *p, int64_t task,
                                  float *workspace) {
    const int64_t dim = p->head_dim, row = round_up(dim, BLOCK), columns = round_up(dim, LANES);
    const int64_t kv_head = task % p->kv_heads, b = task / p->kv_heads;
    const int64_t group = p->heads / p->kv_heads, first_head = kv_head * group;
    const int64_t query_start = p->query_starts[b];
    const int64_t queries = p->query_starts[b + 1] - query_start;
    const int64_t key_start = p->key_starts[b], keys = p->key_starts[b + 1] - key_start;
    const int64_t size = BACKWARD_TILE * row;
    float *qt_buffer = workspace, *doutt_buffer = qt_buffer + size; /* transposed */
    float *q_buffer = doutt_buffer + size, *dout_buffer = q_buffer + size;
    float *k_buffer = dout_buffer + size, *v_buffer = k_buffer + size;
    float *dk_buffer = v_buffer + size, *dv_buffer = dk_buffer + size;
    float *probs = dv_buffer + size; /* logits, then p; (keys, queries) */
    float *ds = probs + BACKWARD_TILE * BACKWARD_STRIDE; /* dp, then ds; likewise */
    float *lse = ds + BACKWARD_TILE * BACKWARD_STRIDE, *delta = lse + BACKWARD_TILE;
    float *dq_buffer = delta + BACKWARD_TILE;
    const int64_t next = kv_head + 1 < p->kv_heads ? kv_head + 1 : 0, next_b = next ? b : b + 1;
    if (dim * sizeof(X) <= PREFETCH_MAX_BYTES && next_b < p->batch) {
        NAME(prefetch_tokens)(p->k, next, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->v, next, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->dk, next, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->dv, next, p->key_starts, next_b, dim);
        NAME(prefetch_tokens)(p->q, next * group, p->query_starts, next_b, dim);
        NAME(prefetch_tokens)(p->out, next * group, p->query_starts, next_b, dim);
        NAME(prefetch_tokens)(p->dout, next * group, p->query_starts, next_b, dim);
        NAME(prefetch_tokens)(p->dq, next * group, p->query_starts, next_b, dim);
    }
    if (keys == 0)
        for (int64_t h = first_head; h < first_head + group; h++)
            NAME(clear_tokens)(p->dq, h, query_start, queries, dim);
    if (queries == 0) {
        NAME(clear_tokens)(p->dk, kv_head, key_start, keys, dim);
        NAME(clear_tokens)(p->dv, kv_head, key_start, keys, dim);
    }
    if (keys == 0 || queries == 0) return;
    for (int64_t done = 0; done < keys; done += BACKWARD_TILE) {
        const int64_t num_keys = min(BACKWARD_TILE, keys - done);
        const struct panels
            k = NAME(float_rows)(NAME(token)(p->k, kv_head, key_start + done), p->k.token_stride,
                                 num_keys, dim, 1, k_buffer),
            v = NAME(float_rows)(NAME(token)(p->v, kv_head, key_start + done), p->v.token_stride,
                                 num_keys, dim, 0, v_buffer);
        X *dk_tokens = NAME(token)(p->dk, kv_head, key_start + done);
        X *dv_tokens = NAME(token)(p->dv, kv_head, key_start + done);
        struct output dk = NAME(accumulator)(dk_tokens, p->dk.token_stride, dim, dk_buffer);
        struct output dv = NAME(accumulator)(dv_tokens, p->dv.token_stride, dim, dv_buffer);
        for (int64_t h = first_head; h < first_head + group; h++)
            for (int64_t first = p->causal ? done : 0; first < queries; first += BACKWARD_TILE) {
                const int64_t count = min(BACKWARD_TILE, queries - first);
                const int64_t start = query_start + first;
                /* Query i of the tile sees key j if j <= i + diagonal. */
                const int64_t diagonal = p->causal ? first - done : FULL_BAND;
                const int64_t padding = count > BACKWARD_TILE / 2 ? 16 : 0; /* BACKWARD_STRIDE */
                const int64_t stride = round_up(count, BLOCK) + padding;
                const X *q_tokens = NAME(token)(p->q, h, start);
                const X *dout_tokens = NAME(token)(p->dout, h, start);
                const struct panels
                    q = NAME(float_rows)(q_tokens, p->q.token_stride, count, dim, 1, q_buffer),
                    dout = NAME(float_rows)(dout_tokens, p->dout.token_stride, count, dim, 1,
                                            dout_buffer),
                    qt = NAME(transpose)(q_tokens, p->q.token_stride, count, dim,
                                         p->scale * LOG2E, qt_buffer),
                    doutt = NAME(transpose)(dout_tokens, p->dout.token_stride, count, dim,
                                            p->scale, doutt_buffer);
                struct output dq =
                    NAME(accumulator)(NAME(token)(p->dq, h, start), p->dq.token_stride, dim,
                                      dq_buffer + ((h - first_head) * queries + first) * row);
                dq.accumulate = done > 0;
                for (int64_t i = count; i < round_up(count, LANES); i++) lse[i] = delta[i] = 0;
                memcpy(lse, p->lse + h * p->queries + start, (size_t)count * sizeof(float));
                NAME(compute_deltas)(p, h, start, count, delta);
                for (int64_t i = 0; i < count; i += BLOCK) {
                    const int64_t num_queries = min(BLOCK, count - i);
                    const int64_t lanes = round_up(num_queries, LANES);
                    const int64_t visible = min(num_keys, i + num_queries + diagonal);
                    const int64_t panel = i / BLOCK;
                    matmul(visible, lanes, dim,
                           (struct lhs){.data = k.data, .row_stride = k.row_stride},
                           (struct panels){qt.data + panel * qt.panel_stride, qt.row_stride, 0},
                           (struct output){.data = probs + i, .row_stride = stride}, FULL_BAND,
                           FULL_BAND);
                    matmul(visible, lanes, dim,
                           (struct lhs){.data = v.data, .row_stride = v.row_stride},
                           (struct panels){doutt.data + panel * doutt.panel_stride,
                                           doutt.row_stride, 0},
                           (struct output){.data = ds + i, .row_stride = stride}, FULL_BAND,
                           FULL_BAND);
                    if (p->causal)
                        mask_future_keys(probs + i, stride, visible, lanes, i + diagonal);
                    for (int64_t n = i; n < i + lanes; n += LANES)
                        softmax_backward(probs + n, ds + n, stride, visible, vload(lse + n),
                                         vload(delta + n));
                    /* The tiles of matmul read up to MAX_TILE_ROWS rows beyond the triangle. */
                    for (int64_t j = visible; j < min(num_keys, visible + MAX_TILE_ROWS); j++)
                        for (int64_t n = i; n < i + lanes; n++)
                            probs[j * stride + n] = ds[j * stride + n] = 0;
                }
                /* Rows of p and ds are keys: key j is seen by query j - diagonal and later ones. */
                matmul(num_keys, columns, count,
                       (struct lhs){.data = probs, .row_stride = stride}, dout, dv, diagonal,
                       FULL_BAND);
                matmul(num_keys, columns, count, (struct lhs){.data = ds, .row_stride = stride}, q,
                       dk, diagonal, FULL_BAND);
                matmul(count, columns, num_keys,
                       (struct lhs){.data = ds, .row_stride = stride, .transposed = 1}, k, dq,
                       FULL_BAND, diagonal);
                dk.accumulate = dv.accumulate = 1;
            }
        NAME(write_tokens)(dk_tokens, p->dk.token_stride, num_keys, dim, dk, 0);
        NAME(write_tokens)(dv_tokens, p->dv.token_stride, num_keys, dim, dv, 0);
    }
    for (int64_t h = first_head; h < first_head + group; h++) {
        X *dq_tokens = NAME(token)(p->dq, h, query_start);
        const struct output dq =
            NAME(accumulator)(dq_tokens, p->dq.token_stride, dim,
                              dq_buffer + (h - first_head) * queries * row);
        NAME(write_tokens)(dq_tokens, p->dq.token_stride, queries, dim, dq, 0);
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
