/* What the drivers that know their definition have in common: drawn numbers, and every level with one
 * to three threads. */
#ifndef ADDNORM_DRIVER_H
#define ADDNORM_DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "addnorm.h"

/* A buffer of exactly that size. */
static inline void *made(int64_t count, size_t size) {
    void *buffer = malloc(count ? (size_t)count * size : 1);
    if (buffer == NULL) abort();
    return buffer;
}

/* Numbers from -1 to 1. */
static inline float *drawn(int64_t count, uint32_t seed) {
    float *buffer = made(count, sizeof *buffer);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        buffer[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;
    }
    return buffer;
}

/* How far a run is from the definition. */
typedef double tried(int size, int how, int level, int threads);

/* The exit code: not 0 if a run is further away than rounding. */
static inline int try_all(tried *run, int sizes, int hows) {
    const int levels = addnorm_levels();
    int wrong = 0, runs = 0;
    for (int size = 0; size < sizes; size++)
        for (int how = 0; how < hows; how++)
            for (int level = 0; level < ADDNORM_LEVELS; level++)
                for (int threads = 1; levels >> level & 1 && threads < 4; threads++, runs++) {
                    const double worst = run(size, how, level, threads);
                    if (worst <= 1e-5) continue;
                    printf("size %d, how %d, level %d, threads %d: off by %g\n", size, how, level,
                           threads, worst);
                    wrong++;
                }
    printf("%d runs, %d wrong, levels %d\n", runs, wrong, levels);
    return wrong != 0;
}

#endif
