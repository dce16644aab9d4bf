/* Attention of few queries: which level, and who does which head. */
#include <stdlib.h>

#include "addnorm.h"
#include "few.h"
#include "threads.h"

static addnorm_look *const levels[ADDNORM_LEVELS] = {
    addnorm_look_portable,
#ifdef ADDNORM_X86
    addnorm_look_avx2,
    addnorm_look_avx512,
#endif
};

struct work {
    addnorm_look *look;
    const struct addnorm_few *p;
    float *room;
};

static void share(void *given, int thread, int threads) {
    const struct work *work = given;
    const int64_t tasks = work->p->batch * work->p->heads;
    float *room = work->room + thread * work->p->keys;
    for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; task++)
        work->look(work->p, task, room);
}

int addnorm_few_forward(const struct addnorm_few *p, int level, int threads) {
    struct work work = {levels[level], p, NULL};
    if (p->batch * p->heads < threads) threads = 1;
    work.room = malloc((size_t)(p->keys * threads + 1) * sizeof(float));
    if (work.room == NULL) return 1;
    addnorm_on_threads(share, &work, threads);
    free(work.room);
    return 0;
}
