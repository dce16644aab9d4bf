/* Linear map: choice of the level and of the algorithm, and division of the work among threads. */
#include <stdlib.h>

#include "common/addnorm.h"
#include "common/threads.h"
#include "linear/linear.h"

static const struct addnorm_linear_level *const levels[ADDNORM_LEVELS] = {
    &addnorm_linear_portable,
#ifdef ADDNORM_X86
    &addnorm_linear_avx2,
    &addnorm_linear_avx512,
#endif
};

struct work {
    const struct addnorm_linear_level *level;
    const struct addnorm_linear *p;
    float *workspace;
    int64_t workspace_stride; /* floats per thread */
};

static void small_batch_body(void *context, int thread, int threads) {
    const struct work *work = context;
    const int64_t columns = work->p->columns;
    work->level->small_batch(work->p, work->workspace, columns * thread / threads,
                             columns * (thread + 1) / threads);
}

static void large_batch_body(void *context, int thread, int threads) {
    const struct work *work = context;
    const int64_t rows = work->p->rows;
    work->level->large_batch(work->p, work->workspace + thread * work->workspace_stride,
                             rows * thread / threads, rows * (thread + 1) / threads);
}

int addnorm_linear(const struct addnorm_linear *p, int level, int threads) {
    const int small = p->rows <= ADDNORM_LINEAR_MAX_SMALL_ROWS;
    const int64_t alignment = ADDNORM_LINEAR_ROW_ALIGNMENT;
    const int64_t padded_rows = (p->rows + alignment - 1) / alignment * alignment;
    struct work work = {levels[level], p, NULL, ADDNORM_LINEAR_COLUMN_BLOCK * p->depth};
    int64_t size;
    if (p->rows == 0 || p->columns == 0) return 0;
    if ((small ? p->columns : p->rows) < threads) threads = 1;
    size = small ? padded_rows * (p->depth + 1) : threads * (work.workspace_stride + 16);
    work.workspace = aligned_alloc(64, (size_t)size * sizeof(float));
    if (work.workspace == NULL) return 1;
    if (small) work.level->transpose_rows(p, work.workspace);
    addnorm_parallel(small ? small_batch_body : large_batch_body, &work, threads);
    free(work.workspace);
    return 0;
}
