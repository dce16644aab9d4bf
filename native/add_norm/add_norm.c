/* Dropout, add and norm: choice of the level, and division of the rows among threads. */
#include <stddef.h>
#include <stdlib.h>

#include "add_norm/isa_levels.h"
#include "common/threads.h"

/* Sums over rows (dweight, dbias, dscales) are made per row block and then added in order. */
enum { MIN_BLOCK_ROWS = 64, MAX_ROW_BLOCKS = 64 };

static const struct addnorm_add_norm_level *const levels[ADDNORM_LEVELS] = {
    &addnorm_add_norm_portable,
#ifdef ADDNORM_X86
    &addnorm_add_norm_avx2,
    &addnorm_add_norm_avx512,
#endif
};

static int64_t rows_per_block(int64_t rows) {
    int64_t even = (rows + MAX_ROW_BLOCKS - 1) / MAX_ROW_BLOCKS;
    even = (even + 7) / 8 * 8; /* kernels take up to eight rows at a time */
    return even > MIN_BLOCK_ROWS ? even : MIN_BLOCK_ROWS;
}

static int64_t count_row_blocks(int64_t rows) {
    int64_t size = rows_per_block(rows);
    return (rows + size - 1) / size;
}

struct work {
    addnorm_row_kernel *kernel;
    const struct addnorm_rows *p;
};

/* The number of rows alone determines the row blocks, so that threads change no sum. */
static void thread_body(void *context, int thread, int threads) {
    const struct work *work = context;
    int64_t rows = work->p->rows, size = rows_per_block(rows), blocks = count_row_blocks(rows);
    for (int64_t row_block = thread; row_block < blocks; row_block += threads) {
        int64_t first = row_block * size, last = first + size;
        work->kernel(work->p, first, last < rows ? last : rows, row_block);
    }
}

static void run(addnorm_row_kernel *kernel, const struct addnorm_rows *p, int threads) {
    struct work work = {kernel, p};
    addnorm_parallel(thread_body, &work, count_row_blocks(p->rows) < 2 ? 1 : threads);
}

/* Add the partial sums of all row blocks, in order; `which`: 0 dweight, 1 dbias, 2 dscales. */
static void reduce_partials(float *sum, const struct addnorm_rows *p, int64_t which) {
    if (sum == NULL) return;
    for (int64_t i = 0; i < p->dim; i++) sum[i] = 0;
    for (int64_t row_block = 0; row_block < count_row_blocks(p->rows); row_block++) {
        const float *partial = p->partial + (3 * row_block + which) * p->dim;
        for (int64_t i = 0; i < p->dim; i++) sum[i] += partial[i];
    }
}

void addnorm_add_norm_forward(const struct addnorm_rows *p, int level, int threads) {
    run(levels[level]->forward[p->dtypes], p, threads);
}

int addnorm_add_norm_backward(const struct addnorm_rows *args, int level, int threads) {
    struct addnorm_rows local = *args, *p = &local;
    p->partial = NULL;
    if (p->dweight || p->dbias || p->dscales) {
        p->partial = malloc((size_t)(3 * count_row_blocks(p->rows) * p->dim + 1) * sizeof(float));
        if (p->partial == NULL) return 1;
    }
    run(levels[level]->backward[p->dtypes], p, threads);
    reduce_partials(p->dweight, p, 0);
    reduce_partials(p->dbias, p, 1);
    reduce_partials(p->dscales, p, 2);
    free(p->partial);
    return 0;
}

void addnorm_dropout(const struct addnorm_rows *p, int level, int threads) {
    run(levels[level]->dropout[p->dtypes], p, threads);
}
