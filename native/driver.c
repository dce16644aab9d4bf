/* Runs every kernel on odd shapes with buffers of exactly their size, for the sanitizers of the
 * compiler (`make sanitize`); levels and threads must agree. No torch, no Python. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "addnorm.h"

enum { STREAM_COUNT = 8, VECTOR_COUNT = 6 };

static void *made(size_t count, size_t size) {
    void *buffer = malloc(count * size ? count * size : 1);
    if (buffer == NULL) abort();
    memset(buffer, 0, count * size);
    return buffer;
}

static void fill(void *buffer, int64_t count, int narrow, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        float value;
        uint32_t bits;
        seed = seed * 1664525u + 1013904223u;
        value = (float)(seed >> 8) / (float)(1 << 23) - 1;
        memcpy(&bits, &value, sizeof bits);
        if (narrow)
            ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)buffer)[i] = value;
    }
}

static float at(const void *buffer, int64_t i, int narrow) {
    float value;
    uint32_t bits;
    if (!narrow) return ((const float *)buffer)[i];
    bits = (uint32_t)((const uint16_t *)buffer)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct results {
    float *values;
    int64_t count;
};

static struct results run(int64_t rows, int64_t dim, int types, int how, int level, int threads) {
    const int64_t size = rows * dim, seed = 12345;
    const int narrow_x = types == ADDNORM_BF16, narrow_f = types != ADDNORM_F32;
    struct addnorm_rows p = {.rows = rows, .dim = dim, .types = types, .seed = &seed};
    void *streams[STREAM_COUNT]; /* x, s, y, dy, ds, dx; f, df */
    float *vectors[VECTOR_COUNT], *statistics = made((size_t)(2 * rows), sizeof(float));
    struct results r = {made((size_t)(6 * size + 3 * dim), sizeof(float)), 0};
    for (int i = 0; i < STREAM_COUNT; i++) {
        const int narrow = i < 6 ? narrow_x : narrow_f;
        streams[i] = made((size_t)size, narrow ? 2 : 4);
        if (i == 0 || i == 3 || i == 4 || i == 6) fill(streams[i], size, narrow, 7u + (uint32_t)i);
    }
    for (int i = 0; i < VECTOR_COUNT; i++) {
        vectors[i] = made((size_t)dim, sizeof(float));
        if (i < 3) fill(vectors[i], dim, 0, 17u + (uint32_t)i);
    }
    p.rms = how & 1;
    p.dropped = how & 2 ? 20000 : 0;
    p.kept = 65536.0f / (65536.0f - (float)p.dropped);
    p.scale = 1.5f;
    p.eps = 1e-2f;
    if (how & 4) p.weight = vectors[0], p.bias = vectors[1], p.scales = vectors[2];
    p.x = streams[0], p.f = streams[6], p.s = streams[1], p.y = streams[2];
    p.mean = statistics, p.rstd = statistics + rows;
    addnorm_forward(&p, level, threads);
    p.dy = streams[3], p.dx = streams[5], p.df = streams[7];
    if (how & 4) {
        p.ds = streams[4];
        p.dweight = vectors[3], p.dbias = vectors[4], p.dscales = vectors[5];
    }
    if (addnorm_backward(&p, level, threads)) abort();
    for (int i = 0; i < STREAM_COUNT; i++)
        if (i == 1 || i == 2 || i == 5 || i == 7)
            for (int64_t j = 0; j < size; j++)
                r.values[r.count++] = at(streams[i], j, i < 6 ? narrow_x : narrow_f);
    for (int i = 3; i < VECTOR_COUNT; i++)
        for (int64_t j = 0; j < dim; j++) r.values[r.count++] = vectors[i][j];
    p.s = NULL, p.mean = NULL, p.rstd = NULL; /* as without gradients */
    addnorm_forward(&p, level, threads);
    for (int64_t j = 0; j < size; j++) r.values[r.count++] = at(streams[2], j, narrow_x);
    if (p.dropped && types != ADDNORM_F32_BF16) {
        p.y = streams[7];
        addnorm_drop(&p, level, threads);
        for (int64_t j = 0; j < size; j++) r.values[r.count++] = at(streams[7], j, narrow_f);
    }
    for (int i = 0; i < STREAM_COUNT; i++) free(streams[i]);
    for (int i = 0; i < VECTOR_COUNT; i++) free(vectors[i]);
    free(statistics);
    return r;
}

int main(void) {
    static const int64_t shapes[][2] = {{0, 5},    {1, 1},    {3, 7},  {5, 64},
                                        {130, 33}, {259, 20}, {3, 555}};
    const int levels = addnorm_levels();
    int wrong = 0, runs = 0;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
        for (int types = 0; types < ADDNORM_TYPES; types++)
            for (int how = 0; how < 8; how++) {
                const int64_t rows = shapes[n][0], dim = shapes[n][1];
                const struct results plain = run(rows, dim, types, how, ADDNORM_PORTABLE, 1);
                for (int level = 0; level < ADDNORM_LEVELS; level++)
                    for (int threads = 1; levels >> level & 1 && threads < 4; threads++) {
                        const struct results r = run(rows, dim, types, how, level, threads);
                        const float near = types == ADDNORM_F32 ? 1e-4f : 0.1f;
                        float worst = r.count == plain.count ? 0 : INFINITY;
                        for (int64_t i = 0; i < r.count && i < plain.count; i++) {
                            float off = fabsf(r.values[i] - plain.values[i]);
                            off /= 1 + fabsf(plain.values[i]);
                            if (!(off <= worst)) worst = off;
                        }
                        if (!(worst <= (level ? near : 0))) {
                            printf("%ld x %ld, types %d, how %d, level %d, threads %d: off by %g\n",
                                   (long)rows, (long)dim, types, how, level, threads, worst);
                            wrong++;
                        }
                        runs++;
                        free(r.values);
                    }
                free(plain.values);
            }
    printf("%d runs, %d wrong, levels %d\n", runs, wrong, levels);
    return wrong != 0;
}
