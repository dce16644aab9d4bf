/* Sanitizer driver of decode attention (see common/sanitizer_driver.h). */
#include <math.h>

#include "common/sanitizer_driver.h"
#include "decode_attention/decode_attention.h"

enum { MAX_KEYS = 64 };

static const int64_t shapes[][6] = {/* batch, heads, kv_heads, queries, keys, head_dim */
                                    {0, 2, 1, 1, 3, 4},  {1, 1, 1, 1, 1, 1},
                                    {2, 4, 2, 1, 17, 16}, {3, 2, 2, 5, 33, 7},
                                    {2, 3, 1, 2, 50, 65}, {1, 2, 2, 1, 0, 8}};

static struct addnorm_tokens make_view(float *data, int64_t heads, int64_t tokens, int64_t dim) {
    return (struct addnorm_tokens){data, heads * tokens * dim, tokens * dim, dim};
}

static const float *token_at(struct addnorm_tokens t, int64_t row, int64_t head, int64_t token) {
    return t.data + row * t.batch_stride + head * t.head_stride + token * t.token_stride;
}

static double query_error(const struct addnorm_decode_attention *p, int64_t row, int64_t head,
                          int64_t query) {
    const int64_t kv_head = head / (p->heads / p->kv_heads);
    const float *q = token_at(p->q, row, head, query), *out = token_at(p->out, row, head, query);
    const int64_t mask = row * p->visible_batch_stride + query * p->visible_query_stride;
    double weights[MAX_KEYS], total = 0, worst = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        double logit = 0;
        weights[j] = 0;
        if (p->visible && !p->visible[mask + j * p->visible_key_stride]) continue;
        for (int64_t i = 0; i < p->head_dim; i++)
            logit += q[i] * token_at(p->k, row, kv_head, j)[i];
        total += weights[j] = exp(p->scale * logit);
    }
    for (int64_t i = 0; i < p->head_dim; i++) {
        double expected = 0, error;
        for (int64_t j = 0; j < p->keys; j++)
            expected += weights[j] * token_at(p->v, row, kv_head, j)[i];
        error = fabs(out[i] - (total > 0 ? expected / total : 0));
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static double run(int shape, int with_mask, int level, int threads) {
    const int64_t *size = shapes[shape], batch = size[0], heads = size[1], kv_heads = size[2];
    const int64_t queries = size[3], keys = size[4], dim = size[5];
    struct addnorm_decode_attention p = {batch, heads, kv_heads, queries, keys, dim, .scale = 0.5f};
    uint8_t *visible = alloc_exact(batch * queries * keys, sizeof *visible);
    double worst = 0;
    p.q = make_view(alloc_uniform(batch * heads * queries * dim, 1), heads, queries, dim);
    p.k = make_view(alloc_uniform(batch * kv_heads * keys * dim, 2), kv_heads, keys, dim);
    p.v = make_view(alloc_uniform(batch * kv_heads * keys * dim, 3), kv_heads, keys, dim);
    p.out = make_view(alloc_uniform(batch * heads * queries * dim, 4), heads, queries, dim);
    /* The second query of the batch sees no key at all. */
    for (int64_t i = 0; i < batch * queries * keys; i++)
        visible[i] = i / keys != 1 && i * 7 % 3 != 0;
    if (with_mask) {
        p.visible = visible;
        p.visible_batch_stride = queries * keys;
        p.visible_query_stride = keys, p.visible_key_stride = 1;
    }
    if (addnorm_decode_attention(&p, level, threads)) abort();
    for (int64_t i = 0; i < batch * heads * queries; i++) {
        const double error = query_error(&p, i / queries / heads, i / queries % heads, i % queries);
        if (!(error <= worst)) worst = error;
    }
    free(p.q.data), free(p.k.data), free(p.v.data), free(p.out.data), free(visible);
    return worst;
}

int main(void) { return run_all_cases(run, sizeof shapes / sizeof *shapes, 2); }
