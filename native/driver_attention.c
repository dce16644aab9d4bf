/* Attention against its definition in loops of doubles, for `make sanitize`: every buffer is as long
 * as it must be and no longer, and several threads must give the bits of one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "addnorm.h"
#include "attention.h"

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, TENSORS };

static uint32_t state = 1;
static float draw(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static size_t size_of(int type) { return type == ADDNORM_F32 ? 4 : 2; }

static double get(const void *at, int64_t i, int type) {
    uint32_t bits;
    float value;
    if (type == ADDNORM_F32) return ((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set(void *at, int64_t i, int type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == ADDNORM_F32)
        ((float *)at)[i] = value;
    else
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
}

struct problem {
    struct addnorm_attention p;
    struct addnorm_heads *views[TENSORS];
    int64_t count[TENSORS]; /* elements */
};

static void lay_out(struct problem *x, int which, int64_t heads, int64_t tokens, int drawn) {
    struct addnorm_heads *view = x->views[which];
    int64_t count = x->count[which] = heads * tokens * x->p.head_dim;
    view->at = malloc((size_t)count * size_of(x->p.type));
    view->head = x->p.head_dim;
    view->token = heads * x->p.head_dim;
    for (int64_t i = 0; drawn && i < count; i++) set(view->at, i, x->p.type, draw());
}

static double at(const struct problem *x, int which, int64_t head, int64_t token, int64_t i) {
    const struct addnorm_heads *view = x->views[which];
    return get(view->at, head * view->head + token * view->token + i, x->p.type);
}

static double dot(const struct problem *x, int a, int64_t ha, int64_t ta, int b, int64_t hb,
                  int64_t tb) {
    double sum = 0;
    for (int64_t i = 0; i < x->p.head_dim; i++) sum += at(x, a, ha, ta, i) * at(x, b, hb, tb, i);
    return sum;
}

/* The greatest difference of the library's tensors from those of the definition. */
static double wrong(const struct problem *x) {
    const struct addnorm_attention *p = &x->p;
    const int64_t dim = p->head_dim, group = p->heads / p->kv_heads;
    double *want[TENSORS] = {0}, most = 0;
    for (int which = OUT; which < TENSORS; which++)
        want[which] = calloc((size_t)x->count[which] + 1, sizeof(double));
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t t = p->query_starts[b]; t < p->query_starts[b + 1]; t++) {
                const int64_t from = p->key_starts[b], row = t * p->heads + h;
                const int64_t last = p->causal ? t + 1 : p->key_starts[b + 1], g = h / group;
                double *weights = malloc((size_t)(last - from + 1) * sizeof(double));
                double total = 0, delta = 0;
                for (int64_t j = from; j < last; j++)
                    total += weights[j - from] = exp(p->scale * dot(x, Q, h, t, K, g, j));
                for (int64_t j = from; j < last; j++)
                    delta += (weights[j - from] /= total) * dot(x, DOUT, h, t, V, g, j);
                for (int64_t j = from; j < last; j++) {
                    const double w = weights[j - from];
                    const double slope = p->scale * w * (dot(x, DOUT, h, t, V, g, j) - delta);
                    const int64_t key = j * p->kv_heads + g;
                    for (int64_t i = 0; i < dim; i++) {
                        want[OUT][row * dim + i] += w * at(x, V, g, j, i);
                        want[DV][key * dim + i] += w * at(x, DOUT, h, t, i);
                        want[DQ][row * dim + i] += slope * at(x, K, g, j, i);
                        want[DK][key * dim + i] += slope * at(x, Q, h, t, i);
                    }
                }
                free(weights);
            }
    for (int which = OUT; which < TENSORS; which++) {
        for (int64_t i = 0; which != DOUT && i < x->count[which]; i++) {
            double off = fabs(get(x->views[which]->at, i, p->type) - want[which][i]);
            most = off > most || off != off ? off : most;
        }
        free(want[which]);
    }
    return most;
}

static int tried(const int32_t *lengths, const int32_t *key_lengths, int batch, int dim, int causal,
                 int type, int level) {
    struct problem x = {.p = {.batch = batch, .heads = 4, .kv_heads = 2, .head_dim = dim}};
    struct addnorm_attention *p = &x.p;
    int32_t *starts = calloc((size_t)batch + 1, 4), *key_starts = calloc((size_t)batch + 1, 4);
    struct addnorm_heads *views[] = {&p->q, &p->k, &p->v, &p->out, &p->dout, &p->dq, &p->dk, &p->dv};
    void *kept[TENSORS] = {0};
    int failures = 0;
    for (int b = 0; b < batch; b++) {
        starts[b + 1] = starts[b] + lengths[b];
        key_starts[b + 1] = key_starts[b] + key_lengths[b];
    }
    memcpy(x.views, views, sizeof views);
    p->query_starts = starts, p->key_starts = key_starts;
    p->queries = starts[batch], p->keys = key_starts[batch];
    p->type = type, p->causal = causal, p->scale = 0.4f;
    p->lse = malloc((size_t)(p->heads * p->queries) * sizeof(float));
    for (int which = 0; which < TENSORS; which++) {
        const int of_keys = which == K || which == V || which == DK || which == DV;
        lay_out(&x, which, of_keys ? p->kv_heads : p->heads, of_keys ? p->keys : p->queries,
                which < OUT || which == DOUT);
    }
    for (int threads = 1; threads <= 3; threads += 2) {
        double off = 0;
        failures += addnorm_attention_forward(p, level, threads) != ADDNORM_DONE;
        failures += addnorm_attention_backward(p, level, threads) != ADDNORM_DONE;
        if (threads == 1) off = wrong(&x);
        if (!(off < (type == ADDNORM_F32 ? 1e-4 : 6e-2))) failures++;
        for (int which = OUT; which < TENSORS; which++) {
            const size_t bytes = (size_t)x.count[which] * size_of(type);
            if (threads == 1) {
                kept[which] = malloc(bytes + 1);
                memcpy(kept[which], x.views[which]->at, bytes);
            } else {
                failures += memcmp(kept[which], x.views[which]->at, bytes) != 0;
            }
        }
        if (failures)
            printf("attention: level %d type %d dim %d causal %d threads %d: off by %g\n", level,
                   type, dim, causal, threads, off);
    }
    starts[batch]++;
    failures += addnorm_attention_forward(p, level, 1) != ADDNORM_BAD_STARTS;
    for (int which = 0; which < TENSORS; which++) {
        free(x.views[which]->at);
        free(kept[which]);
    }
    free(starts);
    free(key_starts);
    free(p->lse);
    return failures;
}

int main(void) {
    const int32_t lengths[] = {5, 0, 17, 150, 1, 2}, key_lengths[] = {9, 3, 0, 270, 40, 1};
    const int dims[] = {1, 7, 24};
    int failures = 0, runs = 0;
    for (int level = 0; level < ADDNORM_LEVELS; level++)
        for (int type = ADDNORM_F32; type <= ADDNORM_BF16 && addnorm_levels() >> level & 1; type++)
            for (int d = 0; d < 3; d++) {
                failures += tried(lengths, lengths, 6, dims[d], 0, type, level);
                failures += tried(lengths, lengths, 6, dims[d], 1, type, level);
                failures += tried(lengths, key_lengths, 6, dims[d], 0, type, level);
                runs += 3;
            }
    failures += tried(lengths, lengths, 0, 8, 1, ADDNORM_F32, 0);
    printf("attention: %d runs, %d failures\n", runs + 1, failures);
    return failures != 0;
}
