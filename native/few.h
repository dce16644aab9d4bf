/* Attention of few queries to the keys of their row of a batch, forward alone: the interface.
 *
 *   out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum of the same over j
 *
 * for every head, over the keys that the query sees; zeros where it sees none. What is hidden is never
 * read. All is float32, and no number depends on how many threads there are.
 */
#ifndef ADDNORM_FEW_H
#define ADDNORM_FEW_H

#include <stdint.h>

struct addnorm_tokens { /* (batch, heads, tokens, head_dim), the last dense; steps in elements */
    float *at;
    int64_t row, head, token;
};

struct addnorm_few {
    int64_t batch, heads, kv_heads, queries, keys, head_dim;
    float scale;
    struct addnorm_tokens q, k, v, out;
    const uint8_t *seen; /* (batch, heads, queries, keys) by these steps; NULL: all see all */
    int64_t seen_row, seen_head, seen_query, seen_key;
};

#pragma GCC visibility push(default)
/* Not 0 if there is no memory, and then nothing is written. */
int addnorm_few_forward(const struct addnorm_few *p, int level, int threads);
#pragma GCC visibility pop

/* All queries of head number task % heads in row task / heads; room for as many floats as keys. */
typedef void addnorm_look(const struct addnorm_few *p, int64_t task, float *room);

extern addnorm_look addnorm_look_portable, addnorm_look_avx2, addnorm_look_avx512;

#endif
