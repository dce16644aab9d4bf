/* Attention: what a task is, who does it, and that the starts are sound. */
#include <stdlib.h>

#include "addnorm.h"
#include "attention_levels.h"
#include "threads.h"

static const struct addnorm_attention_level *const levels[ADDNORM_LEVELS] = {
    &addnorm_attention_portable,
#ifdef ADDNORM_X86
    &addnorm_attention_avx2,
    &addnorm_attention_avx512,
#endif
};

static int sound(const int32_t *starts, int64_t batch, int64_t tokens) {
    if (starts[0] != 0 || starts[batch] != tokens) return 0;
    for (int64_t b = 0; b < batch; b++)
        if (starts[b + 1] < starts[b]) return 0;
    return 1;
}

static int check(const struct addnorm_attention *p) {
    if (!sound(p->query_starts, p->batch, p->queries) || !sound(p->key_starts, p->batch, p->keys))
        return ADDNORM_BAD_STARTS;
    for (int64_t b = 0; p->causal && b <= p->batch; b++)
        if (p->query_starts[b] != p->key_starts[b]) return ADDNORM_UNEQUAL;
    return ADDNORM_DONE;
}

static int64_t longest(const struct addnorm_attention *p) {
    int64_t most = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t length = p->query_starts[b + 1] - p->query_starts[b];
        most = length > most ? length : most;
    }
    return most;
}

struct work {
    addnorm_attend *attend;
    const struct addnorm_attention *p;
    int64_t tasks, next;
    float *room;
    int64_t each; /* floats of room for one thread */
};

/* Tasks differ in size: whoever is free takes the next. Each writes what no other does. */
static void take(void *given, int thread, int threads) {
    struct work *work = given;
    (void)threads;
    for (;;) {
        int64_t task = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (task >= work->tasks) return;
        work->attend(work->p, task, work->room + thread * work->each);
    }
}

static int run(addnorm_attend *attend, const struct addnorm_attention *p, int64_t tasks,
               int64_t room, int threads) {
    struct work work = {attend, p, tasks, 0, 0, (room + 15) / 16 * 16};
    if (threads > tasks) threads = (int)tasks;
    if (tasks == 0) return ADDNORM_DONE;
    work.room = aligned_alloc(64, (size_t)(work.each * threads) * sizeof(float));
    if (!work.room) return ADDNORM_NO_MEMORY;
    addnorm_on_threads(take, &work, threads);
    free(work.room);
    return ADDNORM_DONE;
}

int addnorm_attention_forward(const struct addnorm_attention *p, int level, int threads) {
    const struct addnorm_attention_level *at = levels[level];
    int wrong = check(p);
    int64_t most;
    if (wrong) return wrong;
    most = longest(p);
    return run(at->forward[p->type], p, p->batch * p->heads * ((most + at->chunk - 1) / at->chunk),
               at->forward_room(p, most), threads);
}

int addnorm_attention_backward(const struct addnorm_attention *p, int level, int threads) {
    const struct addnorm_attention_level *at = levels[level];
    int wrong = check(p);
    if (wrong) return wrong;
    return run(at->backward[p->type], p, p->batch * p->kv_heads, at->backward_room(p, longest(p)),
               threads);
}
