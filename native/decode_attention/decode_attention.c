/* Decode attention: choice of the level, and division of the heads among threads. */
#include <stdlib.h>

#include "common/addnorm.h"
#include "common/threads.h"
#include "decode_attention/decode_attention.h"

static addnorm_decode_attention_kernel *const levels[ADDNORM_LEVELS] = {
    addnorm_decode_attention_portable,
#ifdef ADDNORM_X86
    addnorm_decode_attention_avx2,
    addnorm_decode_attention_avx512,
#endif
};

struct work {
    addnorm_decode_attention_kernel *kernel;
    const struct addnorm_decode_attention *p;
    float *workspace;
};

static void thread_body(void *context, int thread, int threads) {
    const struct work *work = context;
    const int64_t tasks = work->p->batch * work->p->heads;
    float *workspace = work->workspace + thread * work->p->keys;
    for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; task++)
        work->kernel(work->p, task, workspace);
}

int addnorm_decode_attention(const struct addnorm_decode_attention *p, int level, int threads) {
    struct work work = {levels[level], p, NULL};
    if (p->batch * p->heads < threads) threads = 1;
    work.workspace = malloc((size_t)(p->keys * threads + 1) * sizeof(float));
    if (work.workspace == NULL) return 1;
    addnorm_parallel(thread_body, &work, threads);
    free(work.workspace);
    return 0;
}
