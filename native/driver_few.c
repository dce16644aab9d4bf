/* Runs attention of few queries on odd shapes with buffers of exactly their size, for the sanitizers of
 * the compiler (`make sanitize`), and against its definition in float64. No torch, no Python. */
#include <math.h>

#include "driver.h"
#include "few.h"

static const int64_t sizes[][6] = {{0, 2, 1, 1, 3, 4},  {1, 1, 1, 1, 1, 1},   {2, 4, 2, 1, 17, 16},
                                   {3, 2, 2, 5, 33, 7}, {2, 3, 1, 2, 50, 65}, {1, 2, 2, 1, 0, 8}};

static struct addnorm_tokens tokens(float *at, int64_t heads, int64_t count, int64_t dim) {
    return (struct addnorm_tokens){at, heads * count * dim, count * dim, dim};
}

static const float *at(struct addnorm_tokens t, int64_t row, int64_t head, int64_t token) {
    return t.at + row * t.row + head * t.head + token * t.token;
}

static double off(const struct addnorm_few *p, int64_t row, int64_t head, int64_t query) {
    const int64_t shared = head / (p->heads / p->kv_heads);
    const float *q = at(p->q, row, head, query), *out = at(p->out, row, head, query);
    double weights[64], total = 0, worst = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        double logit = 0;
        weights[j] = 0;
        if (p->seen && !p->seen[row * p->seen_row + query * p->seen_query + j * p->seen_key]) continue;
        for (int64_t i = 0; i < p->head_dim; i++) logit += q[i] * at(p->k, row, shared, j)[i];
        total += weights[j] = exp(p->scale * logit);
    }
    for (int64_t i = 0; i < p->head_dim; i++) {
        double wanted = 0;
        for (int64_t j = 0; j < p->keys; j++) wanted += weights[j] * at(p->v, row, shared, j)[i];
        wanted = fabs(out[i] - (total > 0 ? wanted / total : 0));
        if (!(wanted <= worst)) worst = wanted;
    }
    return worst;
}

static double run(int number, int hides, int level, int threads) {
    const int64_t *size = sizes[number], batch = size[0], heads = size[1], kv = size[2], n = size[3], keys = size[4];
    const int64_t dim = size[5];
    struct addnorm_few p = {batch, heads, kv, n, keys, dim, 0.5f, {0}, {0}, {0}, {0}, NULL, 0, 0, 0, 0};
    uint8_t *seen = made(batch * n * keys, sizeof *seen);
    double worst = 0;
    p.q = tokens(drawn(batch * heads * n * dim, 1), heads, n, dim);
    p.k = tokens(drawn(batch * kv * keys * dim, 2), kv, keys, dim);
    p.v = tokens(drawn(batch * kv * keys * dim, 3), kv, keys, dim);
    p.out = tokens(drawn(batch * heads * n * dim, 4), heads, n, dim);
    for (int64_t i = 0; i < batch * n * keys; i++) seen[i] = i / keys != 1 && i * 7 % 3 != 0;
    if (hides) p.seen = seen, p.seen_row = n * keys, p.seen_query = keys, p.seen_key = 1;
    if (addnorm_few_forward(&p, level, threads)) abort();
    for (int64_t i = 0; i < batch * heads * n; i++) {
        double now = off(&p, i / n / heads, i / n % heads, i % n);
        if (!(now <= worst)) worst = now;
    }
    free(p.q.at), free(p.k.at), free(p.v.at), free(p.out.at), free(seen);
    return worst;
}

int main(void) { return try_all(run, sizeof sizes / sizeof *sizes, 2); }
