/* Attention over packed sequences: the interface.
 *
 *   out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum over j of the same
 *
 * for every head, over the keys j of the sequence of query i, and with j <= i if `causal`.
 * Sequence b owns the queries query_starts[b] to query_starts[b + 1], and its keys likewise. A
 * query without keys gets zeros. Memory is linear in the sequence length, and no sum depends on
 * the number of threads.
 */
#ifndef ADDNORM_ATTENTION_H
#define ADDNORM_ATTENTION_H

#include <stdint.h>

struct addnorm_heads { /* a view (heads, tokens, head_dim), the last axis dense */
    void *data;
    int64_t head_stride, token_stride; /* in elements */
};

struct addnorm_attention { /* ATTENTION_STRUCT of src/addnorm/kernels/attention/native.py */
    int64_t batch, heads, kv_heads, head_dim, queries, keys;
    const int32_t *query_starts, *key_starts; /* (batch + 1) each */
    int32_t dtype;                            /* ADDNORM_F32 or ADDNORM_BF16 */
    int32_t causal;
    float scale;
    float *lse; /* (heads, queries): log2 of the softmax denominator, for the backward */
    struct addnorm_heads q, k, v, out;
    /* Backward only; it reads `lse` and `out`. */
    struct addnorm_heads dout, dq, dk, dv;
};

enum { ADDNORM_OK, ADDNORM_BAD_STARTS, ADDNORM_UNEQUAL_LENGTHS, ADDNORM_NO_MEMORY };

#pragma GCC visibility push(default)
/* Return ADDNORM_OK, or an error with nothing written: starts that do not rise from 0 to the number
 * of tokens, or causal sequences with different numbers of queries and keys. */
int addnorm_attention_forward(const struct addnorm_attention *p, int level, int threads);
int addnorm_attention_backward(const struct addnorm_attention *p, int level, int threads);
#pragma GCC visibility pop

#endif
