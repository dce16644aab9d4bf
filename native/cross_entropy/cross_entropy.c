/* Cross entropy: choice of the level, and division of the rows among threads. */
#include "common/addnorm.h"
#include "common/threads.h"
#include "cross_entropy/cross_entropy.h"

static addnorm_cross_entropy_kernel *const levels[ADDNORM_LEVELS] = {
    addnorm_cross_entropy_portable,
#ifdef ADDNORM_X86
    addnorm_cross_entropy_avx2,
    addnorm_cross_entropy_avx512,
#endif
};

struct work {
    addnorm_cross_entropy_kernel *kernel;
    const struct addnorm_cross_entropy *p;
};

static void thread_body(void *context, int thread, int threads) {
    const struct work *work = context;
    const int64_t rows = work->p->rows;
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; row++)
        work->kernel(work->p, row);
}

int addnorm_cross_entropy(const struct addnorm_cross_entropy *p, int level, int threads) {
    struct work work = {levels[level], p};
    for (int64_t row = 0; p->grad && row < p->rows; row++)
        if (p->targets[row] < 0 || p->targets[row] >= p->classes) return 1;
    addnorm_parallel(thread_body, &work, p->rows < 2 ? 1 : threads);
    return 0;
}
