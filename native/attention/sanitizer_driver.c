/* Sanitizer driver of attention over packed sequences (see common/sanitizer_driver.h).
 *
 * Forward and backward are compared with loops over float64, and several threads must produce the
 * bits of one thread. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "common/sanitizer_driver.h"

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, TENSORS };

static size_t element_size(int dtype) { return dtype == ADDNORM_F32 ? 4 : 2; }

static double get(const void *data, int64_t i, int dtype) {
    uint32_t bits;
    float value;
    if (dtype == ADDNORM_F32) return ((const float *)data)[i];
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set(void *data, int64_t i, int dtype, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == ADDNORM_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
}

struct problem {
    struct addnorm_attention p;
    struct addnorm_heads *views[TENSORS];
    int64_t count[TENSORS]; /* elements */
    uint32_t random_state;
};

/* Allocate a tensor, (tokens, heads, head_dim) in memory, with random numbers if `random`. */
static void alloc_tensor(struct problem *x, int which, int64_t heads, int64_t tokens, int random) {
    struct addnorm_heads *view = x->views[which];
    const int64_t count = x->count[which] = heads * tokens * x->p.head_dim;
    view->data = alloc_exact(count, element_size(x->p.dtype));
    view->head_stride = x->p.head_dim;
    view->token_stride = heads * x->p.head_dim;
    for (int64_t i = 0; random && i < count; i++)
        set(view->data, i, x->p.dtype, next_uniform(&x->random_state));
}

static double element(const struct problem *x, int which, int64_t head, int64_t token, int64_t i) {
    const struct addnorm_heads *view = x->views[which];
    return get(view->data, head * view->head_stride + token * view->token_stride + i, x->p.dtype);
}

static double dot(const struct problem *x, int a, int64_t a_head, int64_t a_token, int b,
                  int64_t b_head, int64_t b_token) {
    double sum = 0;
    for (int64_t i = 0; i < x->p.head_dim; i++)
        sum += element(x, a, a_head, a_token, i) * element(x, b, b_head, b_token, i);
    return sum;
}

/* Return the largest difference of out, dq, dk and dv from their definition. */
static double largest_error(const struct problem *x) {
    const struct addnorm_attention *p = &x->p;
    const int64_t dim = p->head_dim, group = p->heads / p->kv_heads;
    double *expected[TENSORS] = {0}, worst = 0;
    for (int which = OUT; which < TENSORS; which++)
        expected[which] = calloc((size_t)x->count[which] + 1, sizeof(double));
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t t = p->query_starts[b]; t < p->query_starts[b + 1]; t++) {
                const int64_t first = p->key_starts[b], row = t * p->heads + h, g = h / group;
                const int64_t last = p->causal ? t + 1 : p->key_starts[b + 1];
                double *probs = malloc((size_t)(last - first + 1) * sizeof(double));
                double total = 0, delta = 0;
                for (int64_t j = first; j < last; j++)
                    total += probs[j - first] = exp(p->scale * dot(x, Q, h, t, K, g, j));
                for (int64_t j = first; j < last; j++)
                    delta += (probs[j - first] /= total) * dot(x, DOUT, h, t, V, g, j);
                for (int64_t j = first; j < last; j++) {
                    const double prob = probs[j - first];
                    const double ds = p->scale * prob * (dot(x, DOUT, h, t, V, g, j) - delta);
                    const int64_t key = j * p->kv_heads + g;
                    for (int64_t i = 0; i < dim; i++) {
                        expected[OUT][row * dim + i] += prob * element(x, V, g, j, i);
                        expected[DV][key * dim + i] += prob * element(x, DOUT, h, t, i);
                        expected[DQ][row * dim + i] += ds * element(x, K, g, j, i);
                        expected[DK][key * dim + i] += ds * element(x, Q, h, t, i);
                    }
                }
                free(probs);
            }
    for (int which = OUT; which < TENSORS; which++) {
        for (int64_t i = 0; which != DOUT && i < x->count[which]; i++) {
            double error = fabs(get(x->views[which]->data, i, p->dtype) - expected[which][i]);
            worst = error > worst || error != error ? error : worst;
        }
        free(expected[which]);
    }
    return worst;
}

static int run(const int32_t *lengths, const int32_t *key_lengths, int batch, int dim, int causal,
               int dtype, int level) {
    struct problem x = {.p = {.batch = batch, .heads = 4, .kv_heads = 2, .head_dim = dim}};
    struct addnorm_attention *p = &x.p;
    int32_t *starts = calloc((size_t)batch + 1, 4), *key_starts = calloc((size_t)batch + 1, 4);
    struct addnorm_heads *views[] = {&p->q,    &p->k,  &p->v,  &p->out,
                                     &p->dout, &p->dq, &p->dk, &p->dv};
    void *one_thread[TENSORS] = {0};
    int failures = 0;
    for (int b = 0; b < batch; b++) {
        starts[b + 1] = starts[b] + lengths[b];
        key_starts[b + 1] = key_starts[b] + key_lengths[b];
    }
    memcpy(x.views, views, sizeof views);
    x.random_state = 1;
    p->query_starts = starts, p->key_starts = key_starts;
    p->queries = starts[batch], p->keys = key_starts[batch];
    p->dtype = dtype, p->causal = causal, p->scale = 0.4f;
    p->lse = alloc_exact(p->heads * p->queries, sizeof(float));
    for (int which = 0; which < TENSORS; which++) {
        const int of_keys = which == K || which == V || which == DK || which == DV;
        alloc_tensor(&x, which, of_keys ? p->kv_heads : p->heads, of_keys ? p->keys : p->queries,
                     which < OUT || which == DOUT);
    }
    for (int threads = 1; threads <= 3; threads += 2) {
        double error = 0;
        failures += addnorm_attention_forward(p, level, threads) != ADDNORM_OK;
        failures += addnorm_attention_backward(p, level, threads) != ADDNORM_OK;
        if (threads == 1) error = largest_error(&x);
        if (!(error < (dtype == ADDNORM_F32 ? 1e-4 : 6e-2))) failures++;
        for (int which = OUT; which < TENSORS; which++) {
            const size_t bytes = (size_t)x.count[which] * element_size(dtype);
            if (threads == 1) {
                one_thread[which] = malloc(bytes + 1);
                memcpy(one_thread[which], x.views[which]->data, bytes);
            } else {
                failures += memcmp(one_thread[which], x.views[which]->data, bytes) != 0;
            }
        }
        if (failures)
            printf("level %d, dtype %d, dim %d, causal %d, threads %d: error %g\n", level, dtype,
                   dim, causal, threads, error);
    }
    starts[batch]++;
    failures += addnorm_attention_forward(p, level, 1) != ADDNORM_BAD_STARTS;
    for (int which = 0; which < TENSORS; which++) {
        free(x.views[which]->data);
        free(one_thread[which]);
    }
    free(starts);
    free(key_starts);
    free(p->lse);
    return failures;
}

int main(void) {
    const int32_t lengths[] = {5, 0, 17, 150, 1, 2}, key_lengths[] = {9, 3, 0, 270, 40, 1};
    const int dims[] = {1, 7, 24};
    const int levels = addnorm_levels();
    int failures = 0, runs = 0;
    for (int level = 0; level < ADDNORM_LEVELS; level++)
        for (int dtype = ADDNORM_F32; dtype <= ADDNORM_BF16 && levels >> level & 1; dtype++)
            for (int d = 0; d < 3; d++) {
                failures += run(lengths, lengths, 6, dims[d], 0, dtype, level);
                failures += run(lengths, lengths, 6, dims[d], 1, dtype, level);
                failures += run(lengths, key_lengths, 6, dims[d], 0, dtype, level);
                runs += 3;
            }
    failures += run(lengths, lengths, 0, 8, 1, ADDNORM_F32, 0);
    printf("%d runs, %d failures, levels %d\n", runs + 1, failures, levels);
    return failures != 0;
}
