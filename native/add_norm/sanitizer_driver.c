/* Sanitizer driver of dropout, add and norm (see common/sanitizer_driver.h).
 *
 * The tests of tests/kernels compare the formulas with torch; here every level and every number of
 * threads is compared with the portable level on one thread, whose bits threads must not change. */
#include <math.h>
#include <string.h>

#include "add_norm/add_norm.h"
#include "common/sanitizer_driver.h"

/* Option bits of a case. AFFINE: with weight, bias, scales and the gradient of s. */
enum { RMS = 1, DROPOUT = 2, AFFINE = 4, NUM_OPTIONS = 8 };

enum { X, S, Y, DY, DS, DX, F, DF, MATRICES };
enum { WEIGHT, BIAS, SCALES, DWEIGHT, DBIAS, DSCALES, VECTORS };

static void *alloc_zeros(int64_t count, size_t size) {
    return memset(alloc_exact(count, size), 0, (size_t)count * size);
}

static void fill(void *buffer, int64_t count, int is_bf16, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        const float value = next_uniform(&seed);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (is_bf16)
            ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)buffer)[i] = value;
    }
}

static float get(const void *buffer, int64_t i, int is_bf16) {
    float value;
    uint32_t bits;
    if (!is_bf16) return ((const float *)buffer)[i];
    bits = (uint32_t)((const uint16_t *)buffer)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct results {
    float *values;
    int64_t count;
};

static void append(struct results *r, const void *buffer, int64_t count, int is_bf16) {
    for (int64_t i = 0; i < count; i++) r->values[r->count++] = get(buffer, i, is_bf16);
}

/* Run forward, backward, a forward without gradients, and dropout; return all outputs. */
static struct results run(int64_t rows, int64_t dim, int dtypes, int options, int level,
                          int threads) {
    const int64_t size = rows * dim, seed = 12345;
    const int x_is_bf16 = dtypes == ADDNORM_BF16, f_is_bf16 = dtypes != ADDNORM_F32;
    struct addnorm_rows p = {.rows = rows, .dim = dim, .dtypes = dtypes, .seed = &seed};
    void *matrices[MATRICES];
    float *vectors[VECTORS], *statistics = alloc_zeros(2 * rows, sizeof(float));
    struct results r = {alloc_zeros(6 * size + 3 * dim, sizeof(float)), 0};
    for (int i = 0; i < MATRICES; i++) {
        const int is_bf16 = i < F ? x_is_bf16 : f_is_bf16;
        matrices[i] = alloc_zeros(size, is_bf16 ? 2 : 4);
        if (i == X || i == DY || i == DS || i == F)
            fill(matrices[i], size, is_bf16, 7u + (uint32_t)i);
    }
    for (int i = 0; i < VECTORS; i++) {
        vectors[i] = alloc_zeros(dim, sizeof(float));
        if (i < DWEIGHT) fill(vectors[i], dim, 0, 17u + (uint32_t)i);
    }
    p.rms = options & RMS;
    p.drop_threshold = options & DROPOUT ? 20000 : 0;
    p.keep_factor = 65536.0f / (65536.0f - (float)p.drop_threshold);
    p.scale = 1.5f;
    p.eps = 1e-2f;
    if (options & AFFINE) p.weight = vectors[WEIGHT], p.bias = vectors[BIAS];
    if (options & AFFINE) p.scales = vectors[SCALES];
    p.x = matrices[X], p.f = matrices[F], p.s = matrices[S], p.y = matrices[Y];
    p.mean = statistics, p.rstd = statistics + rows;
    addnorm_add_norm_forward(&p, level, threads);
    p.dy = matrices[DY], p.dx = matrices[DX], p.df = matrices[DF];
    if (options & AFFINE) {
        p.ds = matrices[DS];
        p.dweight = vectors[DWEIGHT], p.dbias = vectors[DBIAS], p.dscales = vectors[DSCALES];
    }
    if (addnorm_add_norm_backward(&p, level, threads)) abort();
    append(&r, matrices[S], size, x_is_bf16);
    append(&r, matrices[Y], size, x_is_bf16);
    append(&r, matrices[DX], size, x_is_bf16);
    append(&r, matrices[DF], size, f_is_bf16);
    for (int i = DWEIGHT; i < VECTORS; i++) append(&r, vectors[i], dim, 0);
    p.s = NULL, p.mean = NULL, p.rstd = NULL; /* as without gradients */
    addnorm_add_norm_forward(&p, level, threads);
    append(&r, matrices[Y], size, x_is_bf16);
    if (p.drop_threshold && dtypes != ADDNORM_F32_BF16) {
        p.y = matrices[DF];
        addnorm_dropout(&p, level, threads);
        append(&r, matrices[DF], size, f_is_bf16);
    }
    for (int i = 0; i < MATRICES; i++) free(matrices[i]);
    for (int i = 0; i < VECTORS; i++) free(vectors[i]);
    free(statistics);
    return r;
}

static float largest_difference(struct results a, struct results b) {
    float worst = a.count == b.count ? 0 : INFINITY;
    for (int64_t i = 0; i < a.count && i < b.count; i++) {
        const float error = fabsf(a.values[i] - b.values[i]) / (1 + fabsf(b.values[i]));
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

int main(void) {
    static const int64_t shapes[][2] = {{0, 5},    {1, 1},    {3, 7},  {5, 64},
                                        {130, 33}, {259, 20}, {3, 555}};
    const int levels = addnorm_levels();
    int failures = 0, runs = 0;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
        for (int dtypes = 0; dtypes < ADDNORM_DTYPES; dtypes++)
            for (int options = 0; options < NUM_OPTIONS; options++) {
                const int64_t rows = shapes[n][0], dim = shapes[n][1];
                const struct results portable =
                    run(rows, dim, dtypes, options, ADDNORM_PORTABLE, 1);
                for (int level = 0; level < ADDNORM_LEVELS; level++)
                    for (int threads = 1; levels >> level & 1 && threads < 4; threads++, runs++) {
                        const struct results r = run(rows, dim, dtypes, options, level, threads);
                        const float rounding = dtypes == ADDNORM_F32 ? 1e-4f : 0.1f;
                        const float error = largest_difference(r, portable);
                        free(r.values);
                        if (error <= (level ? rounding : 0)) continue;
                        printf("%ld x %ld, dtypes %d, options %d, level %d, threads %d: error %g\n",
                               (long)rows, (long)dim, dtypes, options, level, threads, error);
                        failures++;
                    }
                free(portable.values);
            }
    printf("%d runs, %d failures, levels %d\n", runs, failures, levels);
    return failures != 0;
}
