/* Attention: validation of the starts, and division of the work into tasks.
 *
 * A forward task is one chunk of the queries of one sequence and head. A backward task is one
 * sequence and key head with all query heads that share it, so that dk and dv have a single
 * writer.
 */
#include <stdlib.h>

#include "attention/isa_levels.h"
#include "common/addnorm.h"
#include "common/threads.h"

static const struct addnorm_attention_level *const levels[ADDNORM_LEVELS] = {
    &addnorm_attention_portable,
#ifdef ADDNORM_X86
    &addnorm_attention_avx2,
    &addnorm_attention_avx512,
#endif
};

static int are_valid_starts(const int32_t *starts, int64_t batch, int64_t tokens) {
    if (starts[0] != 0 || starts[batch] != tokens) return 0;
    for (int64_t b = 0; b < batch; b++)
        if (starts[b + 1] < starts[b]) return 0;
    return 1;
}

static int check(const struct addnorm_attention *p) {
    if (!are_valid_starts(p->query_starts, p->batch, p->queries) ||
        !are_valid_starts(p->key_starts, p->batch, p->keys))
        return ADDNORM_BAD_STARTS;
    for (int64_t b = 0; p->causal && b <= p->batch; b++)
        if (p->query_starts[b] != p->key_starts[b]) return ADDNORM_UNEQUAL_LENGTHS;
    return ADDNORM_OK;
}

static int64_t max_query_length(const struct addnorm_attention *p) {
    int64_t max = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t length = p->query_starts[b + 1] - p->query_starts[b];
        max = length > max ? length : max;
    }
    return max;
}

struct work {
    addnorm_attention_kernel *kernel;
    const struct addnorm_attention *p;
    int64_t tasks, next;
    float *workspace;
    int64_t workspace_stride; /* floats per thread */
};

/* Tasks differ in size, so a free thread takes the next one. No two tasks write to the same memory,
 * and each sums in its own order: the result does not depend on the assignment. */
static void thread_body(void *context, int thread, int threads) {
    struct work *work = context;
    (void)threads;
    for (;;) {
        int64_t task = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (task >= work->tasks) return;
        work->kernel(work->p, task, work->workspace + thread * work->workspace_stride);
    }
}

static int run(addnorm_attention_kernel *kernel, const struct addnorm_attention *p, int64_t tasks,
               int64_t workspace, int threads) {
    struct work work = {kernel, p, tasks, 0, NULL, (workspace + 15) / 16 * 16};
    if (threads > tasks) threads = (int)tasks;
    if (tasks == 0) return ADDNORM_OK;
    work.workspace = aligned_alloc(64, (size_t)(work.workspace_stride * threads) * sizeof(float));
    if (!work.workspace) return ADDNORM_NO_MEMORY;
    addnorm_parallel(thread_body, &work, threads);
    free(work.workspace);
    return ADDNORM_OK;
}

int addnorm_attention_forward(const struct addnorm_attention *p, int level, int threads) {
    const struct addnorm_attention_level *at = levels[level];
    int error = check(p);
    int64_t length, chunks;
    if (error) return error;
    length = max_query_length(p);
    chunks = (length + at->query_chunk - 1) / at->query_chunk;
    return run(at->forward[p->dtype], p, p->batch * p->heads * chunks,
               at->forward_workspace(p, length), threads);
}

int addnorm_attention_backward(const struct addnorm_attention *p, int level, int threads) {
    const struct addnorm_attention_level *at = levels[level];
    int error = check(p);
    if (error) return error;
    return run(at->backward[p->dtype], p, p->batch * p->kv_heads,
               at->backward_workspace(p, max_query_length(p)), threads);
}
