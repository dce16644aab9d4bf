/* Which level, how many threads, and which rows belong together. */
#include <stddef.h>
#include <stdlib.h>

#include "levels.h"
#include "threads.h"

enum { PART = 64, PARTS = 64 }; /* rows at least, parts at most, in which sums are made */

static const struct addnorm_level *const levels[ADDNORM_LEVELS] = {
    &addnorm_portable,
#ifdef ADDNORM_X86
    &addnorm_avx2,
    &addnorm_avx512,
#endif
};

int addnorm_version(void) { return ADDNORM_VERSION; }

int addnorm_levels(void) {
    int found = 1 << ADDNORM_PORTABLE;
#ifdef ADDNORM_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found |= 1 << ADDNORM_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            found |= 1 << ADDNORM_AVX512;
    }
#endif
    return found;
}

static int64_t part_rows(int64_t rows) {
    int64_t even = (rows + PARTS - 1) / PARTS;
    even = (even + 7) / 8 * 8; /* kernels take up to eight rows at a time */
    return even > PART ? even : PART;
}

static int64_t parts_of(int64_t rows) {
    int64_t each = part_rows(rows);
    return (rows + each - 1) / each;
}

struct share {
    addnorm_work *work;
    const struct addnorm_rows *p;
};

/* Parts are cut by the number of rows alone, so that threads change no sum. */
static void run_parts(void *given, int thread, int threads) {
    const struct share *share = given;
    int64_t rows = share->p->rows, each = part_rows(rows), parts = parts_of(rows);
    for (int64_t part = thread; part < parts; part += threads) {
        int64_t first = part * each, last = first + each;
        share->work(share->p, first, last < rows ? last : rows, part);
    }
}

static void run(addnorm_work *work, const struct addnorm_rows *p, int threads) {
    struct share share = {work, p};
    addnorm_on_threads(run_parts, &share, parts_of(p->rows) < 2 ? 1 : threads);
}

/* The parts' sums, added in their order. */
static void gather(float *sum, const struct addnorm_rows *p, int64_t which) {
    if (sum == NULL) return;
    for (int64_t i = 0; i < p->dim; i++) sum[i] = 0;
    for (int64_t part = 0; part < parts_of(p->rows); part++) {
        const float *partial = p->partial + (3 * part + which) * p->dim;
        for (int64_t i = 0; i < p->dim; i++) sum[i] += partial[i];
    }
}

void addnorm_forward(const struct addnorm_rows *p, int level, int threads) {
    run(levels[level]->forward[p->types], p, threads);
}

int addnorm_backward(const struct addnorm_rows *whole, int level, int threads) {
    struct addnorm_rows own = *whole, *p = &own;
    p->partial = NULL;
    if (p->dweight || p->dbias || p->dscales) {
        p->partial = malloc((size_t)(3 * parts_of(p->rows) * p->dim + 1) * sizeof(float));
        if (p->partial == NULL) return 1;
    }
    run(levels[level]->backward[p->types], p, threads);
    gather(p->dweight, p, 0);
    gather(p->dbias, p, 1);
    gather(p->dscales, p, 2);
    free(p->partial);
    return 0;
}

void addnorm_drop(const struct addnorm_rows *p, int level, int threads) {
    run(levels[level]->drop[p->types], p, threads);
}
