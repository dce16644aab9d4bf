/* Linear maps: which level, and which rows or columns are whose. */
#include <stdlib.h>

#include "addnorm.h"
#include "linear.h"
#include "threads.h"

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
    float *room;
    int64_t size; /* of a thread's room */
};

static void columns(void *given, int thread, int threads) {
    const struct work *work = given;
    const int64_t all = work->p->columns;
    work->level->few(work->p, work->room, all * thread / threads, all * (thread + 1) / threads);
}

static void rows(void *given, int thread, int threads) {
    const struct work *work = given;
    const int64_t all = work->p->rows;
    work->level->many(work->p, work->room + thread * work->size, all * thread / threads,
                      all * (thread + 1) / threads);
}

int addnorm_linear(const struct addnorm_linear *p, int level, int threads) {
    const int few = p->rows <= ADDNORM_FEW;
    const int64_t lanes = (p->rows + ADDNORM_LANES - 1) / ADDNORM_LANES * ADDNORM_LANES;
    struct work work = {levels[level], p, NULL, ADDNORM_COLUMNS * p->depth};
    if (p->rows == 0 || p->columns == 0) return 0;
    if ((few ? p->columns : p->rows) < threads) threads = 1;
    work.room = aligned_alloc(
        64, (size_t)(few ? lanes * (p->depth + 1) : threads * (work.size + 16)) * sizeof(float));
    if (work.room == NULL) return 1;
    if (few) work.level->turn(p, work.room);
    addnorm_on_threads(few ? columns : rows, &work, threads);
    free(work.room);
    return 0;
}
