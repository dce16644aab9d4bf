/* Functions that kernels.c defines at each instruction-set level, and attention.c chooses from. */
#ifndef ADDNORM_ATTENTION_LEVELS_H
#define ADDNORM_ATTENTION_LEVELS_H

#include "attention/attention.h"

typedef void addnorm_attention_kernel(const struct addnorm_attention *p, int64_t task,
                                      float *workspace);
typedef int64_t addnorm_attention_workspace(const struct addnorm_attention *p, int64_t max_length);

struct addnorm_attention_level {
    int64_t query_chunk; /* queries of one forward task */
    addnorm_attention_workspace *forward_workspace, *backward_workspace; /* floats per thread */
    addnorm_attention_kernel *forward[2], *backward[2];                  /* float32, bfloat16 */
};

extern const struct addnorm_attention_level addnorm_attention_portable, addnorm_attention_avx2,
    addnorm_attention_avx512;

#endif
