/* Common parts of the sanitizer drivers.
 *
 * A driver is a program without torch or Python that runs one operator on odd shapes and compares
 * it with its definition in float64. `make sanitize` builds and runs each driver under
 * AddressSanitizer and UndefinedBehaviorSanitizer, then under ThreadSanitizer. Every buffer has
 * exactly the size that the operator may touch, so that an access beyond it is an error.
 */
#ifndef ADDNORM_DRIVER_H
#define ADDNORM_DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "common/addnorm.h"

/* Allocate a buffer without slack. */
static inline void *alloc_exact(int64_t count, size_t size) {
    void *buffer = malloc(count ? (size_t)count * size : 1);
    if (buffer == NULL) abort();
    return buffer;
}

/* Pseudo-random number from -1 to 1; `state` is that of a linear congruential generator. */
static inline float next_uniform(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* Allocate `count` pseudo-random floats. */
static inline float *alloc_uniform(int64_t count, uint32_t seed) {
    float *buffer = alloc_exact(count, sizeof *buffer);
    for (int64_t i = 0; i < count; i++) buffer[i] = next_uniform(&seed);
    return buffer;
}

/* Run the operator with shape number `shape` and the option bits `options`; return the largest
 * error. */
typedef double run_case(int shape, int options, int level, int threads);

/* Run every case on every level with one to three threads; return the exit code of the driver. */
static inline int run_all_cases(run_case *run, int num_shapes, int num_options) {
    const int levels = addnorm_levels();
    int failures = 0, runs = 0;
    for (int shape = 0; shape < num_shapes; shape++)
        for (int options = 0; options < num_options; options++)
            for (int level = 0; level < ADDNORM_LEVELS; level++)
                for (int threads = 1; levels >> level & 1 && threads < 4; threads++, runs++) {
                    const double error = run(shape, options, level, threads);
                    if (error <= 1e-5) continue;
                    printf("shape %d, options %d, level %d, threads %d: error %g\n", shape, options,
                           level, threads, error);
                    failures++;
                }
    printf("%d runs, %d failures, levels %d\n", runs, failures, levels);
    return failures != 0;
}

#endif
