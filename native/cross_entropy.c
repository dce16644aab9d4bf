/* Cross entropy: which level, and which rows are whose. */
#include "addnorm.h"
#include "cross_entropy.h"
#include "threads.h"

static addnorm_classify *const levels[ADDNORM_LEVELS] = {
    addnorm_classify_portable,
#ifdef ADDNORM_X86
    addnorm_classify_avx2,
    addnorm_classify_avx512,
#endif
};

struct work {
    addnorm_classify *classify;
    const struct addnorm_classes *p;
};

static void share(void *given, int thread, int threads) {
    const struct work *work = given;
    const int64_t rows = work->p->rows;
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; row++)
        work->classify(work->p, row);
}

int addnorm_cross_entropy(const struct addnorm_classes *p, int level, int threads) {
    struct work work = {levels[level], p};
    for (int64_t row = 0; p->grad && row < p->rows; row++)
        if (p->targets[row] < 0 || p->targets[row] >= p->classes) return 1;
    addnorm_on_threads(share, &work, p->rows < 2 ? 1 : threads);
    return 0;
}
